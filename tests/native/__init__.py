"""The sharing library, held to its rules on a stand-in driver."""
