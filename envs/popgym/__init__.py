"""Eight memory tasks of POPGym as compiled environments: cards and boards, each easy, medium or hard."""
