from exploits.harness.off import turned
from faults.harness.case import Case
from faults.harness.endpoint import CHAT, Endpoint
from support import openai_server as srv

CASE = Case(
    row=24,
    what="a body that ends in the middle",
    who="kgen propose",
    code="exit 4, 4 requests, waits 10.5 s",
    attack=Endpoint(
        (srv.cut_body,),
        says=("peer closed connection",),
    ),
    off=turned(
        CHAT,
        "        except Exception as error:  # noqa: BLE001",
        "        except LookupError as error:  # noqa: BLE001",
        "whatever the client raises is a fault with a name",
    ),
    then="exit 4, 4 requests, waits 10.5 s, unclear",
    deep=True,
)
