import assert from 'node:assert/strict'
import { forSuite } from '../support/suite.ts'
import { DECIDER_ACTIONS, eventsOf, madeDecider, QUESTIONS, toolAt } from './decider-support.ts'
import { startAgentApp } from './fixtures.ts'
import { made, refused, refusedAt } from './tool-target.ts'

const URL = 'https://decide.example.com/'

describe('deciders', () => {
  const app = forSuite(() => startAgentApp({ workers: [], actions: DECIDER_ACTIONS }))
  let tool: string
  before(async () => {
    tool = await toolAt(app.key, URL)
  })

  const create = (fields: Record<string, unknown>) =>
    app.key.post('/deciders', { name: 'refused', tool_id: tool, questions: QUESTIONS, ...fields })

  it('are kept, found, changed and deleted by who may', async () => {
    const decider = await madeDecider(app.key, { name: 'Triage', description: 'Mail', agent_id: app.agentId })
    assert.match(decider.id, /^dcd_/)
    assert.deepEqual(
      { ...decider, id: 0, created_at: 0, updated_at: 0 },
      {
        id: 0,
        project_id: app.projectId,
        name: 'Triage',
        description: 'Mail',
        agent_id: app.agentId,
        tool_id: null,
        escalate_below: null,
        version: 1,
        questions: QUESTIONS,
        created_at: 0,
        updated_at: 0,
      },
    )
    const path = `/deciders/${decider.id}`
    assert.deepEqual((await app.key.get(path)).body, decider)
    assert.equal((await app.key.get('/deciders?name=triag')).body.total, 1)
    assert.equal((await (await app.project()).key.get(path)).status, 404)
    const statement = [
      { effect: 'Allow', action: ['deciders:GetDecider'], resource: [`srn:${app.projectId}:decider:*`] },
    ]
    const reader = await app.user(undefined, [{ statement }])
    assert.equal((await reader.get(path)).status, 200)
    assert.equal((await reader.patch(path, { name: 'Mine' })).status, 403)
    assert.equal((await app.key.patch(path, { description: null })).body.description, null)
    assert.equal((await app.key.delete(path)).status, 204)
    assert.deepEqual(
      (await eventsOf(app.key, decider.id)).map(({ event }) => event),
      ['deciders.deleted', 'deciders.updated', 'deciders.created'],
    )
  })

  it('have a name that is unique in the project', async () => {
    await madeDecider(app.key, { name: 'Taken', tool_id: tool })
    const other = await madeDecider(app.key, { tool_id: tool })
    refused(await create({ name: 'Taken' }), 409, 'NAME_CONFLICT')
    refused(await app.key.patch(`/deciders/${other.id}`, { name: 'Taken' }), 409, 'NAME_CONFLICT')
    const both = { name: 'Taken', questions: QUESTIONS.slice(1) }
    refused(await app.key.patch(`/deciders/${other.id}`, both), 409, 'NAME_CONFLICT')
  })

  it('refuse invalid questions, naming the path', async () => {
    const [predicate, choice, score] = QUESTIONS as any[]
    const wrong: [string, unknown[]][] = [
      ['questions', []],
      ['questions', Array.from({ length: 21 }, (_, n) => ({ ...predicate, name: `q${n}` }))],
      ['questions[1].name', [predicate, predicate]],
      ['questions[0].name', [{ ...predicate, name: '1st' }]],
      ['questions[0].instructions', [{ ...predicate, instructions: '' }]],
      ['questions[0].instructions', [{ ...predicate, instructions: 'x'.repeat(4001) }]],
      ['questions[0].choices', [{ ...predicate, choices: choice.choices }]],
      ['questions[0].type', [{ ...predicate, type: 'essay' }]],
      ['questions[0].choices', [{ ...choice, choices: choice.choices.slice(1) }]],
      ['questions[0].choices[1].value', [{ ...choice, choices: [choice.choices[0], choice.choices[0]] }]],
      ['questions[0].choices[0].description', [{ ...choice, choices: [{ value: 'a' }, choice.choices[0]] }]],
      ['questions[0].levels[0].label', [{ ...score, levels: [{ label: '', description: 'x' }, score.levels[0]] }]],
    ]
    for (const [path, questions] of wrong) {
      const error = refusedAt(await create({ questions }), path)
      assert.ok(error.message.includes(path), error.message)
    }
  })

  it('name exactly one of an agent and a tool; naming one replaces the other', async () => {
    refusedAt(await create({ agent_id: app.agentId }), 'tool_id')
    refusedAt(await create({ tool_id: undefined }), 'tool_id')
    const { id } = await madeDecider(app.key, { tool_id: tool })
    const changed = (await app.key.patch(`/deciders/${id}`, { agent_id: app.agentId })).body
    assert.deepEqual([changed.agent_id, changed.tool_id, changed.version], [app.agentId, null, 1])
    refusedAt(await app.key.patch(`/deciders/${id}`, { agent_id: null }), 'tool_id')
    refusedAt(await app.key.patch(`/deciders/${id}`, { agent_id: app.agentId, tool_id: tool }), 'tool_id')
    const back = (await app.key.patch(`/deciders/${id}`, { tool_id: tool })).body
    assert.deepEqual([back.agent_id, back.tool_id], [null, tool])
  })

  it('name agents and tools of their project only', async () => {
    const other = await app.project()
    const foreign = await toolAt(other.key, URL)
    refused(await create({ tool_id: foreign }), 400, 'TOOL_NOT_FOUND')
    refused(await create({ tool_id: 'tool_1' }), 400, 'TOOL_NOT_FOUND')
    refused(await create({ tool_id: undefined, agent_id: 'agent_1' }), 400, 'AGENT_NOT_FOUND')
    const elsewhere = { name: 'x', project_id: other.id, agent_id: app.agentId, questions: QUESTIONS }
    refused(await app.admin.post('/deciders', elsewhere), 400, 'AGENT_NOT_FOUND')
  })

  it('name tools of type http or pipeline that leave input and questions unset', async () => {
    const mcp = await made(app.key, { type: 'mcp', mcp: { url: 'https://mcp.example.com/' } })
    const client = await made(app.key, { type: 'client' })
    const pinned = await toolAt(app.key, URL, { preset_parameters: { input: 'always this' } })
    const pipeline = await made(app.key, { type: 'pipeline', pipeline: { steps: [{ id: 'a', tool_id: tool }] } })
    for (const id of [mcp.id, client.id, pinned]) {
      const error = refused(await create({ tool_id: id }), 400, 'DECIDER_TOOL_NOT_CALLABLE')
      assert.equal(error.meta.tool_id, id)
    }
    assert.equal((await create({ name: 'by steps', tool_id: pipeline.id })).status, 201)
  })

  it('name agents without tools, in the version that is served', async () => {
    const bare = await app.agent()
    const bound = await app.agent({
      tool_bindings: [{ tool_id: tool }, { tool: { name: 'own', execute: { url: URL } } }],
    })
    const error = refused(await create({ tool_id: null, agent_id: bound }), 400, 'DECIDER_AGENT_NOT_TOOL_LESS')
    assert.deepEqual(error.meta, { agent_id: bound, tools: [tool, 'own'] })
    const { id } = await madeDecider(app.key, { agent_id: bare })
    const ask = () => app.key.post(`/deciders/${id}/decisions`, { input: 'x' })
    assert.equal((await ask()).status, 201)
    assert.equal((await app.admin.patch(`/agents/${bare}`, { tool_bindings: [{ tool_id: tool }] })).status, 200)
    refused(await ask(), 400, 'DECIDER_AGENT_NOT_TOOL_LESS')
    refused(await app.key.patch(`/deciders/${id}`, { name: `${id} other` }), 400, 'DECIDER_AGENT_NOT_TOOL_LESS')
    const release = { stable_version: 1, canary_version: 2, canary_percent: 50 }
    assert.equal((await app.admin.put(`/agents/${bare}/release`, release)).status, 200)
    assert.equal((await ask()).status, 201)
  })

  it('are written by callers who may call the agent or tool', async () => {
    const project = await app.projectWith(['deciders:*', 'tools:CreateTool'])
    const own = await toolAt(project.key, URL)
    const body = { name: 'x', tool_id: own, questions: QUESTIONS }
    refused(await project.key.post('/deciders', body), 403, 'FORBIDDEN')
    const decider = await app.admin.post('/deciders', { ...body, project_id: project.id })
    assert.equal(decider.status, 201)
    assert.equal((await project.key.patch(`/deciders/${decider.body.id}`, { name: 'y' })).status, 200)
    const other = await toolAt(project.key, URL)
    refused(await project.key.patch(`/deciders/${decider.body.id}`, { tool_id: other }), 403, 'FORBIDDEN')
  })

  it('keep the agents and tools that they name, forced or not', async () => {
    const agent = await app.agent()
    const asked = await toolAt(app.key, URL)
    const deciders = [await madeDecider(app.key, { agent_id: agent }), await madeDecider(app.key, { tool_id: asked })]
    const cases: [string, string, string][] = [
      [`/agents/${agent}`, 'AGENT_HAS_DEPENDENTS', deciders[0].id],
      [`/tools/${asked}`, 'TOOL_HAS_DEPENDENTS', deciders[1].id],
    ]
    for (const [path, code, id] of cases) {
      for (const query of ['', '?force=true']) {
        const { meta } = refused(await app.admin.delete(path + query), 409, code)
        assert.deepEqual(meta, { counts: { deciders: 1 }, sample_ids: { deciders: [id] }, forcible: false })
      }
      assert.equal((await app.key.delete(`/deciders/${id}`)).status, 204)
      assert.equal((await app.admin.delete(path)).status, 204)
    }
  })

  describe('versions', () => {
    it('follow the questions, and nothing else', async () => {
      const { id } = await madeDecider(app.key, { tool_id: tool, version_label: 'first' })
      const path = `/deciders/${id}`
      assert.equal((await app.key.patch(path, { name: `${id} renamed`, description: 'x' })).body.version, 1)
      assert.equal((await app.key.patch(path, { questions: QUESTIONS })).body.version, 1)
      const questions = QUESTIONS.slice(0, 2)
      assert.equal((await app.key.patch(path, { questions, version_label: 'short' })).body.version, 2)
      const listed = (await app.key.get(`${path}/versions`)).body
      assert.deepEqual(
        listed.data.map(({ version, label }: any) => [version, label]),
        [
          [2, 'short'],
          [1, 'first'],
        ],
      )
      const first = (await app.key.get(`${path}/versions/1`)).body
      assert.deepEqual(first.config, { questions: QUESTIONS })
      assert.deepEqual([first.decider_id, first.version], [id, 1])
      refused(await app.key.get(`${path}/versions/3`), 404, 'RESOURCE_NOT_FOUND')
      refused(await app.key.get(`${path}/versions/x`), 400, 'VALIDATION_FAILED')
    })

    it('are compared by path', async () => {
      const { id } = await madeDecider(app.key, { tool_id: tool })
      const [first, ...others] = QUESTIONS
      await app.key.patch(`/deciders/${id}`, { questions: [{ ...first, instructions: 'Now?' }, ...others.slice(1)] })
      const { from, to, changes } = (await app.key.get(`/deciders/${id}/versions/compare`)).body
      assert.deepEqual([from, to], [1, 2])
      assert.deepEqual(changes[0], {
        path: 'questions[0].instructions',
        op: 'changed',
        before: first.instructions,
        after: 'Now?',
      })
      assert.deepEqual((await app.key.get(`/deciders/${id}/versions/compare?from=2&to=2`)).body.changes, [])
    })

    it('are restored as the next one', async () => {
      const { id } = await madeDecider(app.key, { tool_id: tool })
      await app.key.patch(`/deciders/${id}`, { questions: QUESTIONS.slice(1), name: `${id} renamed` })
      const restore = (version: number, body?: object) =>
        app.key.post(`/deciders/${id}/versions/${version}/restore`, body)
      const restored = (await restore(1)).body
      assert.deepEqual([restored.version, restored.questions, restored.name], [3, QUESTIONS, `${id} renamed`])
      assert.equal((await app.key.get(`/deciders/${id}/versions/3`)).body.label, 'restored from v1')
      assert.equal((await restore(1)).body.version, 3)
      assert.equal((await restore(2, { label: 'again' })).body.version, 4)
      refused(await restore(9), 404, 'RESOURCE_NOT_FOUND')
    })

    it('are written against the version that the caller names', async () => {
      const { id } = await madeDecider(app.key, { tool_id: tool })
      const write = (expected_version: number, n: number) =>
        app.key.patch(`/deciders/${id}`, { expected_version, questions: QUESTIONS.slice(n) })
      assert.equal((await write(1, 1)).status, 200)
      const { meta } = refused(await write(1, 2), 409, 'VERSION_CONFLICT')
      assert.deepEqual(meta, { current_version: 2, expected_version: 1 })
      const at = Array.from({ length: 8 }, (_, n) => ({ ...QUESTIONS[0], name: `q${n}` }))
      const replies = await Promise.all(at.map(question => app.key.patch(`/deciders/${id}`, { questions: [question] })))
      assert.deepEqual(
        replies.map(({ body }) => body.version).sort((a, b) => a - b),
        [3, 4, 5, 6, 7, 8, 9, 10],
      )
    })
  })

  it('are cloned with their agents and tools', async () => {
    const project = await app.project()
    const asked = await toolAt(project.key, URL)
    const { id } = await madeDecider(project.key, { name: 'Triage', tool_id: asked })
    const clone = async (include: string[]) =>
      (await app.admin.post(`/projects/${project.id}/clone`, { name: 'copy', include })).body
    const { project: copied, ids } = await clone(['deciders', 'tools'])
    const copy = (await app.admin.get(`/deciders/${ids[id]}`)).body
    assert.deepEqual([copy.project_id, copy.tool_id, copy.name], [copied.id, ids[asked], 'Triage'])
    assert.equal((await clone(['deciders'])).ids[id], undefined)
  })
})
