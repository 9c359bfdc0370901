"""Write the reference into docs/ (`make reference`); with --check, only report what differs from the code."""

import sys

from deploy.reference.documents import ROOT, generate

changed = {path: text for path, text in generate().items() if not path.exists() or path.read_text() != text}
for path, text in changed.items():
    print(f"{path.relative_to(ROOT)} {'differs from the code' if '--check' in sys.argv else 'is written'}")
    if "--check" not in sys.argv:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
sys.exit(bool(changed and "--check" in sys.argv))
