/** Texts of getting started. */

export const start = {
  intro: 'From an empty project to the first reply. Each step opens the form that does it.',
  done: 'Done',
  optional: 'Then, if you need it',
  hide: 'Hide in this tab',
  progress: (done: number, all: number) => `${done} of ${all} steps done`,
  complete: 'This project is set up. Everything else is in the navigation.',
  provider: 'Connect a model provider',
  providerText: 'The account at a model vendor, or an endpoint of your own, that pays for the replies.',
  agent: 'Create an agent',
  agentText: 'Instructions and a model. Tools and knowledge can follow later.',
  reply: 'Get the first reply',
  replyText: 'Talk to the agent in the playground and watch each step arrive.',
  key: 'Create a project key',
  keyText: 'Your application sends it with each request. It is shown once.',
  request: 'Send the first request with the key',
  requestText: 'From a terminal or your application:',
  document: 'Let it find documents',
  documentText: 'Upload and ingest a file, then search it.',
  tool: 'Give it a tool',
  toolText: 'A call to your API, an MCP server, or an action of the platform.',
  webhook: 'Receive events',
  webhookText: 'A signed request to your address for each event.',
  test: 'Check',
  checkOk: (model: string, ms: number) => `${model} answered in ${ms} ms`,
} as const

export const provider = {
  title: 'Connect a model provider',
  provider: 'Vendor',
  model: 'Default model',
  modelHelp: 'Used by agents that name no model, such as gpt-5.2 or claude-sonnet-5',
  key: 'API key',
  keyHelp: 'Stored encrypted as a secret of the project. Leave empty for an endpoint without one.',
  url: 'Base URL',
  urlHelp: "Only for an endpoint other than the vendor's.",
  button: 'Connect and check',
  ok: 'The provider answered',
  notOk: 'The provider is saved, but did not answer',
} as const

export const key = {
  title: 'Create a project key',
  once: 'Copy the key now. It is not shown again.',
  done: 'I have copied it',
  policy: 'The key may do what you may do in this project. Narrow it with policies before you use it in production.',
} as const
