import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { json } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { ACTIONS, move, ok, startTaskApp, task, until, workflow } from './tasks-support.ts'

describe('exports of hostile cases', () => {
  const app = forSuite(() =>
    startTaskApp({
      actions: [...ACTIONS, 'cases:*', 'files:*', 'documents:*', 'sessions:*', 'conversations:*'],
    }),
  )

  const aCase = (body: object = {}) => ok(app.key.post('/cases', { title: 'A claim', ...body }), 201)
  const exported = async (subject_id: string, formats: string[]): Promise<any> => {
    const { id } = await ok(app.key.post('/playbook-exports', { subject_type: 'case', subject_id, formats }), 202)
    return eventually(async () => {
      const { body } = await app.key.get(`/playbook-exports/${id}`)
      return ['completed', 'failed'].includes(body.status) && body
    })
  }
  const content = async ({ file_id }: { file_id: string }): Promise<string> =>
    Buffer.from((await app.key.get(`/files/${file_id}/download/base64`)).body.content, 'base64').toString()
  const refused = async (id: string) => {
    const { status, error } = await exported(id, ['markdown'])
    return [status, error?.code]
  }
  const tooLarge = ['failed', 'REQUEST_REJECTED']

  it('presents each linked record exactly as its GET operation does', async () => {
    const { key } = app
    app.target.answer = json({ no: true }, 500)
    const flow = await workflow(key, {
      states: [
        { name: 'a', initial: true, on_enter: { dispatch: { kind: 'tool', tool_id: app.toolId } } },
        { name: 'b', on_enter: { dispatch: { kind: 'agent', agent_id: app.agentId, input_mapping: { prompt: 'x' } } } },
      ],
      transitions: [
        { name: 'ask', from: ['a'], to: 'b', requires_approval: true },
        { name: 'go', from: ['a'], to: 'b' },
      ],
    })
    const tool_context = { secret: 'not-to-be-seen' }
    const gated = await task(key, flow.id, { tool_context })
    await until(key, gated.id, ({ automation_status }) => automation_status === 'failed')
    const { pending_approval_id } = await ok(move(key, gated.id, 'ask', { tool_context }))
    const turned = await task(key, flow.id, { tool_context })
    await ok(move(key, turned.id, 'go', { tool_context }))
    const { active_dispatch } = await until(
      key,
      turned.id,
      ({ automation_status }) => automation_status === 'completed',
    )
    const exception = await eventually(async () => (await ok(key.get('/exceptions'))).data[0])
    const graph = await ok(
      key.post('/orchestrations', { name: 'graph', nodes: [{ id: 'a', type: 'transform', expression: 1 }], edges: [] }),
      201,
    )
    const run = await ok(
      key.post('/orchestration-runs', { orchestration_id: graph.id, input: { a: 1 }, wait: true, tool_context }),
      201,
    )
    const session = await ok(key.post('/sessions', { agent_id: app.agentId, tool_context }), 201)
    const file = await ok(key.post('/files/upload/base64', { filename: 'a.txt', content: 'aGk=' }), 201)
    const document = await ok(key.post('/documents', { title: 'a text', content: 'a text' }), 201)
    const other = await aCase()
    const about = await aCase()
    const linked = {
      task: ['tasks', gated.id],
      approval: ['approvals', pending_approval_id],
      exception: ['exceptions', exception.id],
      session: ['sessions', session.id],
      conversation: ['conversations', session.conversation_id],
      document: ['documents', document.id],
      file: ['files', file.id],
      generation: ['generations', active_dispatch.id],
      orchestration_run: ['orchestration-runs', run.id],
      case: ['cases', other.id],
    }
    for (const [type, [, target_id]] of Object.entries(linked))
      await ok(key.post(`/cases/${about.id}/links`, { type, target_id }), 201)
    const done = await exported(about.id, ['json'])
    assert.deepEqual([done.status, done.omitted], ['completed', []], JSON.stringify(done.error))
    const text = await content(done.files[0])
    assert.ok(!text.includes('not-to-be-seen'))
    const snapshot = JSON.parse(text)
    for (const [type, [path, id]] of Object.entries(linked)) {
      const shown = await ok(key.get(`/${path}/${id}`))
      const [record] = snapshot[path.replace('-', '_')]
      for (const name of Object.keys(record)) assert.ok(name in shown, `${name} of a ${type}`)
      assert.equal(record.id, id)
    }
  })

  it('handles long runs of backticks and deeply nested values', async () => {
    const { id } = await aCase()
    const deep = (levels: number): unknown => (levels === 0 ? [1, 2, 3] : [deep(levels - 1), 1, 2])
    for (const content of [{ text: '` '.repeat(250_000) }, { deep: deep(55), '"': '"'.repeat(10_000) }])
      await ok(app.key.post(`/cases/${id}/evidence`, { name: 'fences', kind: 'note', content }), 201)
    const done = await exported(id, ['json', 'markdown', 'html'])
    assert.equal(done.status, 'completed', JSON.stringify(done.error))
    const shown = JSON.parse(await content(done.files[0]))
    assert.deepEqual(shown.evidence[1].content.deep, deep(55))
    assert.equal(shown.evidence[0].content.text.length, 500_000)
    for (const file of done.files.slice(1))
      assert.ok((await content(file)).includes('` ` `'.replaceAll('`', file.format === 'html' ? '&#96;' : '`')))
  })

  it('refuses too many or too large rows, links, records and executions without loading them', async () => {
    const { pool } = app
    const project = app.projectId
    const rows = await aCase()
    await pool.query(sql.unsafe`
      insert into case_timeline (id, project_id, case_id, kind, principal_kind, data, bytes)
      select 'case_evt_' || ${rows.id} || n, ${project}, ${rows.id}, 'comment', 'user', '{}', 2 from generate_series(1, 140000) n`)
    assert.deepEqual(await refused(rows.id), tooLarge)

    const links = await aCase()
    await pool.query(sql.unsafe`
      insert into case_links (id, project_id, case_id, type, target_id)
      select 'case_link_' || ${links.id} || n, ${project}, ${links.id}, 'task', 'task_' || n from generate_series(1, 10001) n`)
    assert.deepEqual(await refused(links.id), tooLarge)

    const flow = await workflow(app.key, { states: [{ name: 'a', initial: true }], transitions: [] })
    const { id } = await task(app.key, flow.id, { payload: { text: 'x'.repeat(250_000) } })
    const records = await aCase()
    await pool.query(sql.unsafe`
      with copies as (
        insert into tasks select r.* from tasks t, generate_series(1, 300) n,
          json_populate_record(t, json_build_object('id', 'task_' || lpad(n::text, 26, '0'))) r where t.id = ${id} returning id)
      insert into case_links (id, project_id, case_id, type, target_id)
      select 'case_link_' || id, ${project}, ${records.id}, 'task', id from copies`)
    assert.deepEqual(await refused(records.id), tooLarge)

    const executions = await aCase()
    await pool.query(sql.unsafe`
      insert into playbook_executions (id, project_id, case_id, playbook_id, playbook_name, playbook_version, definition, status,
        orchestration_run_id)
      select 'pbk_exec_' || n, ${project}, ${executions.id}, 'pbk_1', 'p', 1, json_build_object('steps', repeat('x', 250000)),
        'completed', 'orch_run_' || n from generate_series(1, 300) n`)
    assert.deepEqual(await refused(executions.id), tooLarge)
  })
})
