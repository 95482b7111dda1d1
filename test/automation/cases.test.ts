import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { sql } from '#core/db/sql.ts'
import { startAgentApp } from '../execution/fixtures.ts'
import type { Client } from '../support/app.ts'
import { storedEvents } from '../support/events.ts'
import { createdBy, refusalOf } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const hash = (text: string) => createHash('sha256').update(text).digest('hex')

describe('cases', () => {
  const app = forSuite(() => startAgentApp({ workers: [] }))
  let key: Client
  let project: string
  before(async () => {
    const made = await app.projectWith(['cases:*', 'actors:*', 'actors:DeleteActor', 'files:*', 'documents:*'])
    key = made.key
    project = made.id
  })

  const create = (body: object = {}, by = key) => createdBy(by, '/cases', { title: 'A claim', ...body })
  const timeline = async (id: string, query = '') => (await key.get(`/cases/${id}/timeline${query}`)).body.data
  const events = (id: string) => storedEvents(app.pool, { resource: id })

  it('creates an open case with a project number and one timeline entry', async () => {
    const first = await create({ fields: { amount: 20 }, subject: { type: 'order', id: 'o-1', label: 'Order 1' } })
    const second = await create()
    assert.equal(second.number, first.number + 1)
    assert.equal(first.status, 'open')
    assert.equal(first.priority, 'normal')
    assert.deepEqual(first.fields, { amount: 20 })
    assert.deepEqual(first.created_by.kind, 'api_key')
    const other = await app.projectWith(['cases:*'])
    assert.equal((await create({}, other.key)).number, 1)
    const rows = await timeline(first.id)
    assert.deepEqual(
      rows.map((row: any) => [row.kind, row.principal_kind, row.principal_id]),
      [['created', 'api_key', first.created_by.id]],
    )
    assert.deepEqual((await key.get(`/cases/${first.id}`)).body, first)
  })

  it('creates one case per external ID under concurrent creates', async () => {
    const made = await Promise.all(
      Array.from({ length: 50 }, () => key.post('/cases', { title: 'Once', external_id: 'T-1' })),
    )
    assert.equal(new Set(made.map(({ body }) => body.id)).size, 1)
    assert.deepEqual(made.map(({ status }) => status).sort(), [...Array(49).fill(200), 201])
    assert.equal((await key.get('/cases?external_id=T-1')).body.total, 1)
    assert.equal((await timeline(made[0].body.id)).length, 1)
    const other = await app.projectWith(['cases:*'])
    assert.equal((await other.key.post('/cases', { title: 'Once', external_id: 'T-1' })).status, 201)
  })

  it('allocates numbers without gaps under concurrent creates', async () => {
    const other = await app.projectWith(['cases:*'])
    const made = await Promise.all(Array.from({ length: 20 }, () => create({}, other.key)))
    assert.deepEqual(
      made.map(({ number }) => number).sort((a, b) => a - b),
      [...Array(20).keys()].map(n => n + 1),
    )
  })

  it('rejects invalid fields and reports them', async () => {
    const refused = async (body: object, path: string) => {
      const answer = await key.post('/cases', { title: 'x', ...body })
      assert.deepEqual(refusalOf(answer), [400, 'VALIDATION_FAILED'], JSON.stringify(body))
      assert.equal(answer.body.error.meta.problems[0].path, path)
    }
    await refused({ title: ' ' }, 'title')
    await refused({ status: 'closed' }, 'status')
    await refused({ priority: 'huge' }, 'priority')
    await refused({ subject: { type: 'order' } }, 'subject.id')
    await refused({ fields: [] }, 'fields')
    await refused({ fields: { text: 'x'.repeat(256 * 1024) } }, 'fields')
    await refused({ due_at: 'tomorrow' }, 'due_at')
    await refused({ input: {} }, 'input')
    await refused({ start_execution: true }, 'playbook_id')
    assert.deepEqual(refusalOf(await key.post('/cases', { title: 'x', actor_id: 'actor_nobody' })), [
      400,
      'ACTOR_NOT_FOUND',
    ])
    assert.deepEqual(refusalOf(await key.post('/cases', { title: 'x', playbook_id: 'pbk_none' })), [
      404,
      'RESOURCE_NOT_FOUND',
    ])
    const elsewhere = await app.projectWith(['actors:CreateActor'])
    const actor = (await elsewhere.key.post('/actors', { name: 'theirs' })).body.id
    assert.deepEqual(refusalOf(await key.post('/cases', { title: 'x', actor_id: actor })), [400, 'ACTOR_NOT_FOUND'])
    assert.deepEqual(refusalOf(await key.get('/cases?status=')), [400, 'VALIDATION_FAILED'])
    assert.deepEqual(refusalOf(await key.get('/cases?number=x')), [400, 'VALIDATION_FAILED'])
  })

  it('keeps all concurrent changes of fields and records them', async () => {
    const { id } = await create({ fields: { kept: true } })
    const changed = await Promise.all(
      Array.from({ length: 10 }, (_, n) => key.patch(`/cases/${id}`, { fields: { [`f${n}`]: n } })),
    )
    assert.ok(changed.every(({ status }) => status === 200))
    const { body } = await key.get(`/cases/${id}`)
    assert.deepEqual(body.fields, {
      kept: true,
      ...Object.fromEntries(Array.from({ length: 10 }, (_, n) => [`f${n}`, n])),
    })
    const rows = (await timeline(id, '?kind=updated')) as any[]
    assert.equal(rows.length, 10)
    assert.ok(rows.every(({ data }) => Object.keys(data.changes.fields).length === 1))

    await key.patch(`/cases/${id}`, { title: 'Another', fields: { kept: false, constructor: 1 } })
    const [last] = (await timeline(id)).slice(-1)
    assert.deepEqual(last.data.changes, {
      title: { from: 'A claim', to: 'Another' },
      fields: { kept: { from: true, to: false }, constructor: { from: null, to: 1 } },
    })
    const told = (await events(id)).filter(({ name }: any) => name === 'cases.updated')
    assert.deepEqual(told.at(-1)?.data.changed.sort(), ['fields', 'title'])

    const before = (await timeline(id)).length
    await key.patch(`/cases/${id}`, { title: 'Another' })
    assert.equal((await timeline(id)).length, before)
    assert.deepEqual(refusalOf(await key.patch(`/cases/${id}`, { fields: { much: 'x'.repeat(255 * 1024) } })), [
      200,
      undefined,
    ])
    const over = await key.patch(`/cases/${id}`, { fields: { more: 'x'.repeat(2048) } })
    assert.deepEqual(refusalOf(over), [400, 'VALIDATION_FAILED'])
    assert.equal(over.body.error.meta.problems[0].path, 'fields')
  })

  it('resolves, closes and reopens a case as its status allows', async () => {
    const { id } = await create()
    const conflict = async (verb: string, body: object, status: string) => {
      const answer = await key.post(`/cases/${id}/${verb}`, body)
      assert.deepEqual(refusalOf(answer), [409, 'CASE_STATE_CONFLICT'])
      assert.equal(answer.body.error.meta.status, status)
    }
    await conflict('reopen', { reason: 'why not' }, 'open')
    assert.deepEqual(refusalOf(await key.post(`/cases/${id}/resolve`, {})), [400, 'VALIDATION_FAILED'])
    const resolved = await key.post(`/cases/${id}/resolve`, { outcome: 'refunded', note: 'in full' })
    assert.deepEqual(
      [resolved.body.status, resolved.body.outcome, resolved.body.outcome_note],
      ['resolved', 'refunded', 'in full'],
    )
    assert.ok(resolved.body.resolved_at)
    await conflict('resolve', { outcome: 'again' }, 'resolved')
    const closed = await key.post(`/cases/${id}/close`)
    assert.deepEqual([closed.body.status, closed.body.outcome], ['closed', 'refunded'])
    await conflict('close', {}, 'closed')

    const refused = [
      key.patch(`/cases/${id}`, { title: 'late' }),
      key.post(`/cases/${id}/comments`, { body: 'late' }),
      key.post(`/cases/${id}/evidence`, { name: 'late', kind: 'note', content: 'x' }),
      key.post(`/cases/${id}/links`, { type: 'case', target_id: id }),
    ]
    for (const answer of await Promise.all(refused)) assert.deepEqual(refusalOf(answer), [409, 'CASE_STATE_CONFLICT'])
    const rows = (await timeline(id)).length
    for (let n = 0; n < 2; n++) assert.equal((await key.put(`/cases/${id}/tags`, { team: 'refunds' })).status, 200)
    assert.equal((await timeline(id)).length, rows + 1)
    assert.deepEqual((await events(id)).at(-1)?.data.changed, ['tags'])

    assert.deepEqual(refusalOf(await key.post(`/cases/${id}/reopen`, {})), [400, 'VALIDATION_FAILED'])
    const open = (await key.post(`/cases/${id}/reopen`, { reason: 'not paid' })).body
    assert.deepEqual([open.status, open.outcome, open.resolved_at, open.closed_at], ['open', null, null, null])
    const [last] = (await timeline(id, '?kind=status_changed')).slice(-1)
    assert.deepEqual(
      [last.data.from, last.data.to, last.data.outcome, last.data.reason],
      ['closed', 'open', 'refunded', 'not paid'],
    )
    const told = (await events(id)).filter(({ name }: any) => name === 'cases.status_changed')
    assert.deepEqual(
      told.map(({ data }: any) => [data.from_status, data.status]),
      [
        ['open', 'resolved'],
        ['resolved', 'closed'],
        ['closed', 'open'],
      ],
    )
  })

  it('closes a case once under concurrent requests', async () => {
    const { id } = await create()
    const answers = await Promise.all(Array.from({ length: 10 }, () => key.post(`/cases/${id}/close`, {})))
    assert.deepEqual(answers.map(({ status }) => status).sort(), [200, ...Array(9).fill(409)])
    assert.equal((await timeline(id, '?kind=status_changed')).length, 1)
  })

  it('refuses conflicting operations while an execution is active', async () => {
    const { id } = await create()
    await app.pool.query(
      sql.unsafe`update cases set active_execution_id = 'pbk_exec_1', status = 'in_progress' where id = ${id}`,
    )
    for (const answer of [
      await key.post(`/cases/${id}/resolve`, { outcome: 'x' }),
      await key.post(`/cases/${id}/close`, {}),
      await key.delete(`/cases/${id}`),
    ]) {
      assert.deepEqual(refusalOf(answer), [409, 'PLAYBOOK_EXECUTION_CONFLICT'])
      assert.equal(answer.body.error.meta.execution_id, 'pbk_exec_1')
    }
  })

  it('stores immutable comments and evidence', async () => {
    const { id } = await create()
    const comment = await key.post(`/cases/${id}/comments`, { body: 'called them' })
    assert.deepEqual([comment.status, comment.body.kind, comment.body.data], [201, 'comment', { body: 'called them' }])
    const note = (await key.post(`/cases/${id}/evidence`, { name: 'Call', kind: 'note', content: { minutes: 4 } })).body
    assert.deepEqual([note.content, note.sha256], [{ minutes: 4 }, hash('{"minutes":4}')])
    const link = (await key.post(`/cases/${id}/evidence`, { name: 'Page', kind: 'link', url: 'https://example.com/a' }))
      .body
    assert.equal(link.sha256, hash('https://example.com/a'))
    const file = (
      await key.post('/files/upload/base64', { filename: 'r.txt', content: Buffer.from('paid').toString('base64') })
    ).body
    const receipt = await key.post(`/cases/${id}/evidence`, { name: 'Receipt', kind: 'file', file_id: file.id })
    assert.deepEqual([receipt.status, receipt.body.sha256], [201, hash('paid')], JSON.stringify(receipt.body))

    for (const [body, path] of [
      [{ name: 'x', kind: 'note' }, 'content'],
      [{ name: 'x', kind: 'note', content: 'x', url: 'https://a.b' }, 'url'],
      [{ name: 'x', kind: 'link', url: 'javascript:alert(1)' }, 'url'],
      [{ name: 'x', kind: 'decision', content: 'x' }, 'kind'],
      [{ name: 'x', kind: 'note', content: 'x'.repeat(1024 * 1024 + 1) }, 'content'],
    ] as const) {
      const answer = await key.post(`/cases/${id}/evidence`, body)
      assert.deepEqual(refusalOf(answer), [400, 'VALIDATION_FAILED'])
      assert.equal(answer.body.error.meta.problems[0].path, path)
    }

    const withdraw = (body: object) => key.post(`/cases/${id}/evidence/${note.id}/withdraw`, body)
    assert.deepEqual(refusalOf(await withdraw({})), [400, 'VALIDATION_FAILED'])
    const withdrawn = (await withdraw({ reason: 'wrong call' })).body
    assert.equal(withdrawn.withdrawn_reason, 'wrong call')
    assert.deepEqual((await withdraw({ reason: 'another reason' })).body, withdrawn)
    const { data, total } = (await key.get(`/cases/${id}/evidence`)).body
    assert.equal(total, 3)
    assert.deepEqual(data[0], withdrawn)
    assert.equal(data[0].sha256, note.sha256)
    assert.equal((await key.get(`/cases/${id}`)).body.evidence_count, 3)
    assert.deepEqual(
      (await timeline(id)).map((row: any) => row.kind),
      ['created', 'comment', 'evidence_added', 'evidence_added', 'evidence_added', 'evidence_withdrawn'],
    )
    const other = await create()
    assert.deepEqual(refusalOf(await key.post(`/cases/${other.id}/evidence/${note.id}/withdraw`, { reason: 'x' })), [
      404,
      'RESOURCE_NOT_FOUND',
    ])

    const deleted = await key.delete(`/cases/${id}`)
    assert.equal(deleted.status, 204)
    assert.equal((await key.get(`/files/${file.id}`)).status, 200)
    assert.equal((await key.get(`/cases/${id}/timeline`)).status, 404)
  })

  it('refuses files of other projects and files that the caller may not read', async () => {
    const { id } = await create()
    const other = await app.projectWith(['files:*'])
    const theirs = (await other.key.post('/files/upload/base64', { filename: 'r.txt', content: 'cGFpZA==' })).body.id
    const ours = (await key.post('/files/upload/base64', { filename: 'ours.txt', content: 'cGFpZA==' })).body.id
    const add = (by: Client, file_id: string) => by.post(`/cases/${id}/evidence`, { name: 'x', kind: 'file', file_id })
    assert.deepEqual(refusalOf(await add(key, theirs)), [400, 'FILE_NOT_FOUND'])
    const empty = (await key.post('/files', { filename: 'later.txt' })).body.id
    assert.deepEqual(refusalOf(await add(key, empty)), [400, 'VALIDATION_FAILED'])
    const blind = await keyOf(['cases:AddEvidence'])
    assert.deepEqual(refusalOf(await add(blind, ours)), [400, 'FILE_NOT_FOUND'])
    assert.equal((await key.get(`/cases/${id}/evidence`)).body.total, 0)
  })

  /** Creates a key of the project with exactly these permissions. */
  async function keyOf(action: string[], resource = `srn:${project}:*:*`): Promise<Client> {
    const document = { statement: [{ effect: 'Allow', action, resource: [resource] }] }
    const policy = (await app.admin.post('/policies', { document })).body.id
    return app.as((await app.admin.post('/project-keys', { project_id: project, policy_ids: [policy] })).body.secret)
  }

  it('links readable resources once and keeps the link after their deletion', async () => {
    const { id } = await create()
    const document = (await key.post('/documents', { title: 'Terms', content: 'All sales are final.' })).body
    const link = (body: object, by = key) => by.post(`/cases/${id}/links`, body)
    const first = await link({ type: 'document', target_id: document.id })
    assert.deepEqual([first.status, first.body.target_exists], [201, true], JSON.stringify(first.body))
    const again = await link({ type: 'document', target_id: document.id })
    assert.deepEqual([again.status, again.body], [200, first.body])
    for (const body of [
      { type: 'generation', target_id: document.id },
      { type: 'document', target_id: 'doc_none' },
      { type: 'secret', target_id: 'x' },
      { type: 'case', target_id: id },
    ])
      assert.deepEqual(refusalOf(await link(body)), [400, 'VALIDATION_FAILED'])
    const blind = await keyOf(['cases:LinkCase'])
    assert.deepEqual(refusalOf(await link({ type: 'document', target_id: document.id }, blind)), [
      400,
      'VALIDATION_FAILED',
    ])

    assert.equal((await key.delete(`/documents/${document.id}`)).status, 204)
    const { data } = (await key.get(`/cases/${id}/links`)).body
    assert.deepEqual(data, [{ ...first.body, target_exists: false }])
    assert.equal((await key.delete(`/cases/${id}/links/${first.body.id}`)).status, 204)
    assert.equal((await key.delete(`/cases/${id}/links/${first.body.id}`)).status, 404)
    assert.deepEqual(
      (await timeline(id)).map((row: any) => row.kind),
      ['created', 'link_added', 'link_removed'],
    )
  })

  it('supports every filter', async () => {
    const actor = (await key.post('/actors', { name: 'Ada' })).body.id
    const wanted = await create({
      title: 'Broken 100% lamp',
      priority: 'urgent',
      assignee: 'kim',
      actor_id: actor,
      external_id: 'F-1',
      subject: { type: 'lamp', id: 'l-1' },
      tags: { team: 'lamps' },
      due_at: '2026-03-01T00:00:00Z',
    })
    for (const query of [
      `number=${wanted.number}`,
      'priority=urgent&status=open',
      'assignee=kim',
      `actor_id=${actor}`,
      'external_id=F-1',
      'subject_type=lamp',
      'subject_id=l-1',
      'q=100%25%20LAMP',
      'tags[team]=lamps',
      'due_from=2026-03-01T00:00:00Z&due_to=2026-03-02T00:00:00Z',
      // Both bounds are inclusive.
      'due_from=2026-03-01T00:00:00Z&due_to=2026-03-01T00:00:00Z',
    ])
      assert.deepEqual(
        (await key.get(`/cases?${query}`)).body.data.map(({ id }: any) => id),
        [wanted.id],
        query,
      )
    const other = (await key.post('/actors', { name: 'Lovelace' })).body.id
    const merged = await key.post(`/actors/${actor}/merge`, { into_actor_id: other })
    assert.equal(merged.status, 200, JSON.stringify(merged.body))
    assert.equal((await key.get(`/cases/${wanted.id}`)).body.actor_id, other)
    assert.equal((await key.delete(`/actors/${other}`)).status, 204)
    assert.equal((await key.get(`/cases/${wanted.id}`)).body.actor_id, null)
    assert.deepEqual(
      (await timeline(wanted.id, '?kind=updated')).map(({ principal_kind, data }: any) => [
        principal_kind,
        data.changes.actor_id,
      ]),
      [
        ['automation', { from: actor, to: other }],
        ['automation', { from: other, to: null }],
      ],
    )
  })

  it('returns 404 to other projects and enforces policies', async () => {
    const { id } = await create()
    const other = await app.projectWith(['cases:*'])
    for (const answer of [
      await other.key.get(`/cases/${id}`),
      await other.key.get(`/cases/${id}/timeline`),
      await other.key.post(`/cases/${id}/comments`, { body: 'x' }),
      await other.key.post(`/cases/${id}/close`, {}),
    ])
      assert.deepEqual(refusalOf(answer), [404, 'RESOURCE_NOT_FOUND'])
    const one = await keyOf(['cases:GetCase', 'cases:ListCases'], `srn:${project}:case:${id}`)
    assert.equal((await one.get(`/cases/${id}/evidence`)).status, 200)
    assert.deepEqual(
      (await one.get('/cases')).body.data.map((row: any) => row.id),
      [id],
    )
    assert.deepEqual(refusalOf(await one.post(`/cases/${id}/comments`, { body: 'x' })), [403, 'FORBIDDEN'])
    assert.equal((await one.get(`/cases/${(await create()).id}`)).status, 403)
  })

  it('merges the contents of a case and closes it', async () => {
    const into = await create({ title: 'Kept' })
    const from = await create({ title: 'Double' })
    await key.post(`/cases/${from.id}/comments`, { body: 'from the double' })
    await key.post(`/cases/${from.id}/evidence`, { name: 'N', kind: 'note', content: 'x' })
    const third = (await create()).id
    for (const id of [into.id, from.id]) await key.post(`/cases/${id}/links`, { type: 'case', target_id: third })
    const merge = (body: object) => key.post(`/cases/${from.id}/merge`, body)
    assert.deepEqual(refusalOf(await merge({ into_case_id: from.id })), [400, 'VALIDATION_FAILED'])
    assert.deepEqual(refusalOf(await merge({ into_case_id: 'case_none' })), [404, 'RESOURCE_NOT_FOUND'])
    const merged = await merge({ into_case_id: into.id })
    assert.deepEqual([merged.body.status, merged.body.outcome, merged.body.evidence_count], ['closed', 'merged', 0])
    assert.deepEqual(refusalOf(await merge({ into_case_id: into.id })), [409, 'CASE_STATE_CONFLICT'])
    const { body } = await key.get(`/cases/${into.id}`)
    assert.equal(body.evidence_count, 1)
    const links = (await key.get(`/cases/${into.id}/links`)).body.data.map(({ target_id }: any) => target_id)
    assert.deepEqual(links.sort(), [from.id, third].sort())
    assert.ok((await timeline(into.id)).some(({ data }: any) => data.body === 'from the double'))
    assert.deepEqual(
      (await timeline(from.id)).map((row: any) => row.kind),
      ['status_changed'],
    )
  })

  it('erases the content of evidence with its turn and keeps the hash', async () => {
    const turn = (await app.key.post(`/agents/${app.agentId}/generate`, { prompt: 'x' })).body

    const made = (await app.key.post('/cases', { title: 'Evidence of a turn' })).body
    const add = await app.key.post(`/cases/${made.id}/evidence`, { name: 'Said', kind: 'note', content: 'hello there' })
    await app.pool.query(
      sql.unsafe`update case_evidence set kind = 'output', generation_id = ${turn.generation_id} where id = ${add.body.id}`,
    )
    await app.pool.query(
      sql.unsafe`update generations set status = 'completed', completed_at = now() where id = ${turn.generation_id}`,
    )
    const purged = await app.admin.delete(`/generations/${turn.generation_id}/content`)
    assert.equal(purged.status < 300, true, JSON.stringify(purged.body))
    const [piece] = (await app.key.get(`/cases/${made.id}/evidence`)).body.data
    assert.deepEqual([piece.content, piece.sha256], [null, hash('hello there')])
  })
})
