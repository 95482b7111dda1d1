import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { ok } from './tasks-support.ts'

describe('hostile cases', () => {
  const app = forSuite(startApp)
  const project = forSuite(() => app.projectWith(['cases:*', 'actors:*', 'events:ListEvents']))

  const aCase = (body: object = {}) => ok(project.key.post('/cases', { title: 'A claim', ...body }), 201)
  const list = (path: string) => ok(project.key.get(path))

  it('limits the size of list pages', async () => {
    const about = await aCase({ fields: { text: 'x'.repeat(250_000) } })
    const { pool } = app
    await pool.query(sql.unsafe`
      insert into cases select r.* from cases t, generate_series(1, 99) n, json_populate_record(t,
        json_build_object('id', left(t.id, -4) || '-' || lpad(n::text, 3, '0'), 'number', -10000 * t.number - n)) r where t.id = ${about.id}`)
    await pool.query(sql.unsafe`
      insert into case_evidence (id, project_id, case_id, name, kind, content, sha256, captured_by, bytes)
      select 'case_evd_' || n, ${project.id}, ${about.id}, 'n', 'note', to_json(repeat('x', 400000)), '', '{"kind": "user", "id": "u"}',
        400000 from generate_series(1, 100) n`)
    await pool.query(sql.unsafe`
      insert into case_timeline (id, project_id, case_id, kind, principal_kind, data, bytes)
      select 'case_evt_' || n, ${project.id}, ${about.id}, 'comment', 'user', json_build_object('body', repeat('x', 400000)), 400000
      from generate_series(1, 100) n`)
    for (const [path, total] of [
      ['/cases', 100],
      [`/cases/${about.id}/evidence`, 100],
      [`/cases/${about.id}/timeline`, 101],
    ] as const) {
      const seen = new Set<string>()
      for (let offset = 0; offset < total; ) {
        const page = await list(`${path}?limit=100&offset=${offset}`)
        assert.deepEqual([page.total, page.data.length < 80], [total, true], path)
        assert.equal(page.limit, offset + page.data.length < total ? page.data.length : 100)
        for (const { id } of page.data) seen.add(id)
        offset += page.data.length
      }
      assert.equal(seen.size, total)
    }
  })

  it('moves any number of cases with their actor', async () => {
    const { body: from } = await project.key.post('/actors', { name: 'from' })
    const { body: to } = await project.key.post('/actors', { name: 'to' })
    const about = await aCase({ actor_id: from.id })
    await app.pool.query(sql.unsafe`
      insert into cases select r.* from cases t, generate_series(1, 2500) n, json_populate_record(t,
        json_build_object('id', left(t.id, -5) || '-' || lpad(n::text, 4, '0'), 'number', -10000 * t.number - n)) r where t.id = ${about.id}`)
    await ok(project.key.post(`/actors/${from.id}/merge`, { into_actor_id: to.id }))
    assert.equal((await list(`/cases?actor_id=${to.id}`)).total, 2501)
    const updated = async () => (await list('/events?event=cases.updated')).total
    assert.equal(await updated(), 1000)
    assert.equal((await project.key.delete(`/actors/${to.id}`)).status, 204)
    const row = await list(`/cases/${about.id}`)
    assert.equal(row.actor_id, null)
    const { data } = await list(`/cases/${about.id}/timeline?kind=updated`)
    assert.deepEqual(
      data.map((entry: any) => [entry.principal_kind, entry.data.changes.actor_id]),
      [
        ['automation', { from: from.id, to: to.id }],
        ['automation', { from: to.id, to: null }],
      ],
    )
    assert.equal(await updated(), 2000)
  })

  it('rejects due times outside the range of the database', async () => {
    for (const time of ['0000-01-01T00:00:00Z', '9999-12-31T23:59:59-14:00', '0001-01-01T00:00:00+14:00']) {
      const made = await project.key.post('/cases', { title: 'x', due_at: time })
      assert.deepEqual([made.status, made.body.error?.meta.problems[0].path], [400, 'due_at'], time)
      const listed = await project.key.get(`/cases?due_from=${encodeURIComponent(time)}`)
      assert.deepEqual([listed.status, listed.body.error?.meta.problems[0].path], [400, 'due_from'], time)
    }
    assert.equal((await aCase({ due_at: '2026-01-01T02:00:00+02:00' })).due_at, '2026-01-01T00:00:00.000Z')
  })

  it('allocates unique numbers and external IDs under concurrency', async () => {
    const replies = await Promise.all(
      Array.from({ length: 40 }, (_, at) =>
        project.key.post('/cases', { title: 'x', ...(at % 2 ? { external_id: `E-${at % 5}` } : {}) }),
      ),
    )
    assert.ok(replies.every(({ status }) => status === 200 || status === 201))
    const made = replies.filter(({ status }) => status === 201).map(({ body }) => body)
    assert.equal(made.length, 25)
    assert.equal(new Set(made.map(({ number }) => number)).size, 25)
    assert.equal(new Set(replies.map(({ body }) => body.id)).size, 25)
    const { body: next } = await project.key.post('/cases', { title: 'x' })
    assert.ok(made.every(({ number }) => number < next.number))
  })

  it('refuses to merge a case that the caller may not read', async () => {
    const [hidden, seen] = [await aCase({ title: 'Hidden' }), await aCase()]
    const statement = (action: string, id: string) => ({
      effect: 'Allow',
      action: [action],
      resource: [`srn:${project.id}:case:${id}`],
    })
    const may = [statement('cases:UpdateCase', '*'), statement('cases:GetCase', seen.id)]
    const caller = await app.user(undefined, [{ statement: may }])
    const refused = await caller.post(`/cases/${hidden.id}/merge`, { into_case_id: seen.id })
    assert.deepEqual([refused.status, refused.body.error.meta], [403, { action: 'cases:GetCase' }])
    assert.equal((await list(`/cases/${hidden.id}`)).status, 'open')
  })

  it('handles concurrent merges and links in both directions', async () => {
    for (let round = 0; round < 5; round++) {
      const [one, other] = [await aCase(), await aCase()]
      const merge = (from: any, into: any) => project.key.post(`/cases/${from.id}/merge`, { into_case_id: into.id })
      const link = (from: any, target: any) =>
        project.key.post(`/cases/${from.id}/links`, { type: 'case', target_id: target.id })
      const linked = await Promise.all([link(one, other), link(other, one)])
      assert.deepEqual(
        linked.map(({ status }) => status),
        [201, 201],
      )
      const merged = await Promise.all([merge(one, other), merge(other, one)])
      assert.deepEqual(merged.map(({ status }) => status).sort(), [200, 409])
      const rows = await Promise.all([one, other].map(({ id }) => list(`/cases/${id}`)))
      assert.deepEqual(rows.map(({ status }) => status).sort(), ['closed', 'open'])
      const stays = rows.find(({ status }) => status === 'open')
      const links = (await list(`/cases/${stays.id}/links`)).data
      assert.deepEqual(
        links.map(({ target_id }: any) => target_id),
        [rows.find(({ status }) => status === 'closed').id],
      )
    }
  })
})
