import assert from 'node:assert/strict'
import { client } from './app.ts'
import { createdBy } from './replies.ts'

type Admin = { username: string; password: string }

/** Signs an admin in, makes a project with an agent on a model, and has it answer. The deployment must reach `modelUrl`. */
export async function assertAnswers(url: string, admin: Admin, modelUrl: string): Promise<void> {
  const { body } = await client(url, null).post('/users/login', admin)
  const user = client(url, body.token)
  const create = (path: string, fields: object) => createdBy(user, path, fields)
  const project_id = (await create('/projects', { name: 'smoke' })).id
  const fields = {
    project_id,
    name: 'double',
    provider: 'custom',
    base_url: `${modelUrl}/v1`,
    default_model: 'double-1',
  }
  const ai_provider_id = (await create('/ai-providers', fields)).id
  const agent = await create('/agents', { project_id, name: 'echo', ai_provider_id })
  const turn = await user.post(`/agents/${agent.id}/generate?wait=true`, { prompt: 'is anybody there?' })
  assert.match(turn.body.output?.content ?? JSON.stringify(turn.body), /is anybody there/)
}
