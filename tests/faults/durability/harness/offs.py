"""The defences of stored files that the cases take out, each as an edit of a copy of its module."""

from exploits.harness.off import Off, turned

DURABLE, PROMOTE, RUNS = "kgen.store.durable", "kgen.promotion.promote", "kgen.store.runs"

FILE_SYNC = turned(
    DURABLE,
    '            self.step("sync")\n            os.fsync(handle)\n',
    '            self.step("sync")\n',
    "a file is synced before it takes its name",
)
FOLDER_SYNC = turned(
    DURABLE,
    "    try:\n        os.fsync(handle)\n    except OSError as error:",
    "    try:\n        pass\n    except OSError as error:",
    "a folder is synced before a name in it counts",
)
SETTLED = turned(
    DURABLE,
    "                _settle(path)\n",
    "                pass\n",
    "a folder that is found is synced once more: who made it may have been killed",
)
KNOWN_SYNCED = turned(
    PROMOTE,
    "                sync_folder(root)  # the promoter may have died before that\n",
    "                pass\n",
    "a promotion that is there already is synced before it is told",
)
FINISHED_SYNCED = turned(
    RUNS,
    "                sync_folder(self.path)  # who wrote it may have died before that\n",
    "                pass\n",
    "a run that has ended already is synced before it is told",
)
BESIDE = Off(
    "a file is written beside its place, and renamed",
    DURABLE,
    (
        (
            "        temp = _beside(path)\n        with storing(path):\n",
            "        temp = path\n        with storing(path):\n",
        ),
        ("os.O_CREAT | os.O_EXCL |", "os.O_CREAT | os.O_TRUNC |"),
    ),
)
AT_ONCE = turned(
    DURABLE,
    '        temp = _beside(path)\n        with storing(path, "create folder"):\n',
    '        temp = path\n        with storing(path, "create folder"):\n',
    "a folder appears with all its files",
)
MANIFEST_LAST = turned(
    PROMOTE,
    "        _fits(root, files)\n",
    "        _fits(root, files)\n        durable.write(root / MANIFEST, manifest_bytes(after))\n",
    "the manifest is written last",
)
SWEPT_UP = turned(
    DURABLE,
    "            except BaseException:\n                with suppress(OSError):\n                    temp.unlink()\n",
    "            except BaseException:\n",
    "what could not be written whole is removed",
)
PATH_NAMED = turned(
    "kgen.store.errors",
    'f"cannot {verb} {path}: {reason}"',
    'f"cannot {verb}: {reason}"',
    "a refusal of the file system names the path",
)
WRITTEN_OUT = turned(
    DURABLE,
    "                view = view[os.write(handle, view) :]\n",
    "                os.write(handle, view)\n                break\n",
    "a write that took a part is gone on with",
)
LOCKED = turned(
    DURABLE,
    "            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
    "            pass\n",
    "one writer at a time",
)
PATIENT = turned(
    DURABLE,
    "LOCK_SECONDS = 60.0 ",
    "LOCK_SECONDS = 0.0 ",
    "a promoter waits for its turn",
)
LOCK_NEEDED = turned(
    DURABLE,
    '            raise StoreError(path, f"cannot lock {path}: {error.strerror}") from error\n',
    "            return\n",
    "without a lock nothing is written",
)
NO_FOLDER_SYNC_HERE = turned(
    DURABLE,
    "NO_FOLDER_FSYNC = (errno.EINVAL, errno.ENOTSUP)",
    "NO_FOLDER_FSYNC = ()",
    "a file system that cannot sync folders is taken as it is",
)
KERNELSET, CODEC, CASE = "kgen.store.kernelset", "kgen.records.codec", "kgen.promotion.case"
SEALED = turned(
    KERNELSET, "if manifest.checksum != checksum(manifest):", "if False:", "the manifest carries its own checksum"
)
HASHED = turned(
    KERNELSET,
    "        data = read_bytes(path)\n        if sha256_bytes(data) != sha256:\n",
    "        data = read_bytes(path)\n        if False:\n",
    "every part is checked against the hash that the manifest has of it",
)
OBJECT_HASHED = turned(
    KERNELSET,
    "MAX_OBJECT_BYTES, path)\n        if sha256_bytes(data) != sha256:\n",
    "MAX_OBJECT_BYTES, path)\n        if False:\n",
    "an object is checked against the hash that is its name",
)
OWN_SCHEMA = turned(
    KERNELSET,
    "        if complaint := _foreign_schema(data):",
    '        data = data.replace(b"manifest/2", b"manifest/1")\n        if complaint := _foreign_schema(data):',
    "a manifest of a newer schema is not read, and so never written again",
)
SCHEMA_CHECKED = turned(
    CODEC,
    '    _check_schema(cls, body.pop("schema", None), where)\n',
    '    body.pop("schema", None)\n',
    "a record of a newer schema is not read",
)
NAMES_FREE = turned(
    PROMOTE,
    "        free = name not in taken or taken[name] == sha256_bytes(data)\n",
    "        free = True\n",
    "a name that a manifest gives to other bytes is not taken again",
)
WHOLE_ID = Off(
    "candidate, verdict, evidence and build records are matched by the whole id",
    CASE,
    (
        ("        if other != mine:\n", "        if other[:12] != mine[:12]:\n"),
        ("if build.candidate != case.candidate.id or build.object_sha256", "if build.object_sha256"),
    ),
)
COUNTED = turned(
    PROMOTE,
    "    seq = manifest.seq + 1\n",
    "    seq = int(utc_now()[:4])\n",
    "promotions are numbered by counting, not by a clock",
)
LATER_NAME = turned(
    RUNS,
    "max(datetime.now(UTC).strftime(STAMP), self._after_the_newest())",
    "datetime.now(UTC).strftime(STAMP)",
    "a run's name sorts after the names of those before it, whatever the clock says",
)
NOT_EMPTY = turned(
    KERNELSET,
    "        if not path.exists():\n            return Manifest()\n",
    "        if not path.exists() or not path.stat().st_size:\n            return Manifest()\n",
    "a manifest without a byte is damage, and no empty set",
)
ONE_LINE = turned(
    KERNELSET,
    'its hash is not the recorded one")\n        return data\n\n    def source',
    'its hash is not the recorded one".partition("/")[0])\n        return data\n\n    def source',
    "a message names the damaged file",
)
PUT_ASIDE = Off(
    "a checkpoint that is no sound database, or cannot be read, is put aside",
    "kgen.loop.graph",
    (("    if not sound:\n", "    if False:\n"), ("    except UNREADABLE:", "    except ZeroDivisionError:")),
)
