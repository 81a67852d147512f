from clippedgossip.cli import main

main()
