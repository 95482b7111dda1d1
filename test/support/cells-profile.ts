/** Tests that a complete run repeats with their projects in a second cell: they read no tables of the deployment in home. */
export const PROFILE = [
  'test/execution/agents.test.ts',
  'test/conversation/sessions.test.ts',
  'test/automation/workflows.test.ts',
  'test/protocols/openai-responses.test.ts',
  'test/formations/deploy.test.ts',
]
