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
