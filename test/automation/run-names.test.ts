import assert from 'node:assert/strict'
import { forSuite } from '../support/suite.ts'
import { startRunApp } from './fixtures.ts'

/** Runs of two orchestrations, and keys whose policies name some of them. */
describe('run names in policies', function () {
  this.timeout(60_000)
  const app = forSuite(startRunApp)
  let one: string
  let other: string
  /** Two runs of the first, one of the other. */
  let runs: string[]

  before(async () => {
    const graph = () => app.orchestration([{ id: 'ask', type: 'human' }])
    one = await graph()
    other = await graph()
    runs = []
    for (const id of [one, one, other]) runs.push((await app.start(id)).id)
  })

  const srn = (type: string, id: string) => `srn:${app.projectId}:${type}:${id}`
  const allow = (action: string[], resource: string[], more: object = {}) => ({
    effect: 'Allow',
    action,
    resource,
    ...more,
  })
  const deny = (action: string[], resource: string[]) => ({ effect: 'Deny', action, resource })
  const keyWith = async (...statement: object[]) => {
    const policy = await app.admin.post('/policies', { document: { statement } })
    assert.equal(policy.status, 201, JSON.stringify(policy.body))
    const key = await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [policy.body.id] })
    return app.as(key.body.secret)
  }
  type Key = Awaited<ReturnType<typeof keyWith>>
  const READ = ['orchestrations:GetRun', 'orchestrations:ListRuns']
  const statuses = async (key: Key) =>
    Promise.all(runs.map(async id => (await key.get(`/orchestration-runs/${id}`)).status))
  const listed = async (key: Key) => {
    const { status, body } = await key.get('/orchestration-runs')
    assert.equal(status, 200, JSON.stringify(body))
    assert.equal(body.total, body.data.length)
    return body.data.map(({ id }: any) => id).sort()
  }

  it('match the run itself', async () => {
    const key = await keyWith(allow(READ, [srn('orchestration_run', runs[0])]))
    assert.deepEqual(await statuses(key), [200, 403, 403])
    assert.deepEqual(await listed(key), [runs[0]])
  })

  it('match the name of the orchestration of a run', async () => {
    const key = await keyWith(allow(READ, [srn('orchestration', one)]))
    assert.deepEqual(await statuses(key), [200, 200, 403])
    assert.deepEqual(await listed(key), [runs[0], runs[1]].sort())
    const type = await keyWith(allow(READ, [srn('orchestration', '*')]))
    assert.deepEqual(await listed(type), [...runs].sort())
  })

  it('deny by one name what the other allows', async () => {
    const own = await keyWith(allow(READ, [srn('orchestration', '*')]), deny(READ, [srn('orchestration_run', runs[0])]))
    assert.deepEqual(await statuses(own), [403, 200, 200])
    assert.deepEqual(await listed(own), [runs[1], runs[2]].sort())
    const graph = await keyWith(allow(READ, [srn('orchestration_run', '*')]), deny(READ, [srn('orchestration', one)]))
    assert.deepEqual(await statuses(graph), [403, 403, 200])
    assert.deepEqual(await listed(graph), [runs[2]])
  })

  it('decide whether a command on a run is allowed', async () => {
    const key = await keyWith(allow(['orchestrations:PauseRun'], [srn('orchestration_run', runs[2])]))
    assert.equal((await key.post(`/orchestration-runs/${runs[2]}/pause`)).status, 200)
    assert.equal((await key.post(`/orchestration-runs/${runs[0]}/pause`)).status, 403)
    assert.equal((await key.post(`/orchestration-runs/${runs[2]}/cancel`)).status, 403)
    const entries = (await app.admin.get(`/audit-log?project_id=${app.projectId}&action=orchestrations:PauseRun`)).body
    assert.ok(entries.data.some((entry: any) => entry.resource_srn === srn('orchestration_run', runs[2])))
  })

  it('without an orchestration neither list nor start runs', async () => {
    const key = await keyWith(allow(['orchestrations:*'], [srn('orchestration_run', '*')]))
    assert.equal((await key.get('/orchestrations')).status, 403)
    assert.equal((await key.post('/orchestration-runs', { orchestration_id: one })).status, 403)
    assert.deepEqual(await listed(key), [...runs].sort())
  })

  it('appear in the allowed actions of a caller', async () => {
    const user = await app.user(undefined, [{ statement: [allow(READ, [srn('orchestration', one)])] }])
    const pages = [0, 100, 200, 300].map(offset =>
      user.get(`/users/me/permissions?project_id=${app.projectId}&limit=100&offset=${offset}`),
    )
    const own = (await Promise.all(pages)).flatMap(({ body }) => body.data)
    const found = own.find(({ action }: any) => action === 'orchestrations:ListRuns')
    assert.equal(found?.allowed, 'some')
    assert.deepEqual(await listed(user as unknown as Key), [runs[0], runs[1]].sort())
  })
})
