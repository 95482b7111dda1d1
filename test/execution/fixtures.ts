import { type Double, startDouble } from '#local/double/server.ts'
import { startApp, type TestApp } from '../support/app.ts'

/** An application with a model double, a project with a provider that points at it and an agent, and a key of the project. */
export type AgentApp = TestApp & {
  double: Double
  projectId: string
  key: Awaited<ReturnType<TestApp['project']>>['key']
  providerId: string
  agentId: string
  /** Another agent of the same project and provider. */
  agent(fields?: Record<string, unknown>): Promise<string>
}

/** `actions` are all that the key's policy allows in the project; the provider and the agents are made by the admin. */
export async function startAgentApp(
  options: Parameters<typeof startApp>[0] & { actions?: readonly string[] } = {},
): Promise<AgentApp> {
  const double = await startDouble({})
  const app = await startApp({ workers: ['generation'], ...options })
  const project = await app.projectWith(options.actions ?? ['*'])
  const provider = await app.admin.post('/ai-providers', {
    project_id: project.id,
    name: 'double',
    provider: 'custom',
    default_model: 'double-1',
    base_url: `${double.url}/v1`,
  })
  if (provider.status !== 201) throw new Error(JSON.stringify(provider.body))
  const agent = async (fields: Record<string, unknown> = {}) => {
    const base = { project_id: project.id, name: 'agent', ai_provider_id: provider.body.id }
    const made = await app.admin.post('/agents', { ...base, ...fields })
    if (made.status !== 201) throw new Error(JSON.stringify(made.body))
    return made.body.id as string
  }
  return {
    ...app,
    double,
    projectId: project.id,
    key: project.key,
    providerId: provider.body.id,
    agentId: await agent(),
    agent,
    async close() {
      await app.close()
      await double.close()
    },
  }
}
