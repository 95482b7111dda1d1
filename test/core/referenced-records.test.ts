import assert from 'node:assert/strict'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

describe('records that fields refer to', () => {
  const app = forSuite(startApp)

  it('have a kind in the description of the API, at each depth', async () => {
    const { body } = await app.admin.get('//openapi.json')
    const { schemas } = body.components
    const kinds = Object.fromEntries(
      ['AgentInput', 'ToolBinding', 'KnowledgeConfig', 'TriggerInput', 'MemoryRuleInput'].flatMap(name =>
        Object.entries<any>(schemas[name].properties).flatMap(([field, { $ref, ...schema }]) => {
          const target = $ref ? schemas[$ref.split('/').at(-1)] : {}
          const kind = schema['x-refers'] ?? target['x-refers']
          return kind ? [[`${name}.${field}`, kind]] : []
        }),
      ),
    )
    assert.deepEqual(kinds, {
      'AgentInput.ai_provider_id': 'ai_provider',
      'AgentInput.model_route_id': 'model_route',
      'AgentInput.active_tool_ids': 'tool',
      'AgentInput.guardrail_ids': 'guardrail',
      'AgentInput.avatar_file_id': 'file',
      'ToolBinding.tool_id': 'tool',
      'KnowledgeConfig.memory_store_ids': 'memory_store',
      'KnowledgeConfig.document_ids': 'document',
      'KnowledgeConfig.write_memory_store_id': 'memory_store',
      'TriggerInput.policy_id': 'policy',
      'MemoryRuleInput.memory_store_id': 'memory_store',
      'MemoryRuleInput.source_agent_ids': 'agent',
      'MemoryRuleInput.agent_id': 'agent',
      'MemoryRuleInput.tool_id': 'tool',
      'MemoryRuleInput.ai_provider_id': 'ai_provider',
    })
  })

  it('are found by a part of their names, in the own project alone, by those who may list them', async () => {
    const rights = ['guardrails:*', 'documents:*', 'files:*']
    const { key } = await app.projectWith(rights)
    const { key: other } = await app.projectWith(rights)
    const { key: without } = await app.projectWith(['agents:*'])
    const add = async (by: typeof key, name: string) => {
      const guardrail = await by.post('/guardrails', { name, document: { class: 'B' } })
      const document = await by.post('/documents', { title: name, path: `/${name}/a.txt`, content: name })
      assert.deepEqual([guardrail.status, document.status], [201, 201])
      return { guardrail: guardrail.body.id, document: document.body.id }
    }
    const [orders, , foreign] = [await add(key, 'Orders 100%'), await add(key, 'Refunds'), await add(other, 'Orders')]
    const found = async (path: string) => (await key.get(path)).body.data.map(({ id }: { id: string }) => id)
    assert.deepEqual(await found('/guardrails?name=orders'), [orders.guardrail])
    assert.deepEqual(await found('/guardrails?name=%25'), [orders.guardrail])
    for (const search of ['orders', '0%25/a', orders.document])
      assert.deepEqual(await found(`/documents?search=${search}`), [orders.document], search)
    assert.deepEqual(await found(`/documents?search=${foreign.document}`), [])
    for (const path of ['/guardrails?name=orders', `/documents?search=${orders.document}`])
      assert.equal((await without.get(path)).status, 403)
  })
})
