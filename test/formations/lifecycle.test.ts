import assert from 'node:assert/strict'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { type Case, resourcesOf } from './resources.ts'

type Formation = { id: string; status: string; error: unknown; resources: any[] }

describe('a formation of every type', function () {
  this.timeout(240_000)
  const app = forSuite(() =>
    startApp({
      workers: ['orchestration'],
      env: { SECRETS_VAULT_ADDR: 'http://127.0.0.1:1', SECRETS_VAULT_TOKEN: 'token' },
    }),
  )

  const templateOf = (resources: Record<string, Case>) => ({
    resources: Object.fromEntries(
      Object.entries(resources).map(([id, { type, properties }]) => [id, { type, properties }]),
    ),
  })
  const live = ({ resources }: Formation) => resources.filter(({ status }) => status !== 'deleted')

  it('is created, not changed, changed, not changed, deleted and created again', async () => {
    const { id: project_id } = await app.project()
    const name = `lifecycle ${project_id}`
    const declared = resourcesOf(name, project_id)
    const create = async (resources: Record<string, Case>): Promise<Formation> => {
      const { status, body } = await app.admin.post('/formations', {
        project_id,
        name,
        template: templateOf(resources),
      })
      assert.deepEqual([status, body.status, body.error], [201, 'active', null], JSON.stringify(body.error))
      assert.equal(live(body).length, Object.keys(resources).length)
      return body
    }
    const update = async ({ id }: Formation, resources: Record<string, Case>): Promise<Formation> => {
      const { status, body } = await app.admin.put(`/formations/${id}`, { template: templateOf(resources) })
      assert.deepEqual([status, body.status, body.error], [200, 'active', null], JSON.stringify(body.error))
      return body
    }
    const changes = async ({ id }: Formation, resources: Record<string, Case>): Promise<string[]> => {
      const { body } = await app.admin.post('/formations/plan', {
        project_id,
        formation_id: id,
        template: templateOf(resources),
      })
      return body.changes.filter(({ action }: any) => action !== 'no-op').map(({ logical_id }: any) => logical_id)
    }
    const remove = async ({ id }: Formation) => {
      const { status, body } = await app.admin.delete(`/formations/${id}`)
      assert.deepEqual([status, body], [200, { success: true }], JSON.stringify(body))
      const path = `/projects/${project_id}/prices`
      const now = Date.now()
      const prices: any[] = (await app.admin.get(`${path}?limit=100`)).body.data
      const left = prices.filter(each => each.effective_until === null || Date.parse(each.effective_until) > now)
      assert.deepEqual(left, [], 'prices that are still in force')
    }

    const first = await create(declared)
    assert.deepEqual(await changes(first, declared), [])
    await update(first, declared)

    const changed = Object.fromEntries(
      Object.entries(declared).map(([id, each]) => [
        id,
        { ...each, properties: { ...each.properties, ...each.changes?.[0] } },
      ]),
    )
    assert.ok((await changes(first, changed)).length > 20)
    await update(first, changed)
    assert.deepEqual(await changes(first, changed), [])
    await update(first, changed)
    await remove(first)

    const second = await create(declared)
    assert.deepEqual(await changes(second, declared), [])
    await remove(second)
  })

  it('ends its price, and starts the next one at its end', async () => {
    const { id: project_id } = await app.project()
    const price = { provider: 'custom', model: 'm', component: 'input_tokens', unit: 'token' }
    const properties = { ...price, unit_price: 2, effective_from: '2026-01-01T00:00:00Z' }
    const template = { resources: { P: { type: 'project_price', properties } } }
    const deploy = async (): Promise<Formation> => {
      const { body } = await app.admin.post('/formations', { project_id, name: 'prices', template })
      assert.equal(body.status, 'active', JSON.stringify(body.error))
      return body
    }
    const priceOf = async ({ resources }: Formation) =>
      (
        await app.admin.get(
          `/projects/${project_id}/prices/${live({ resources } as Formation)[0].physical_resource_id}`,
        )
      ).body
    const first = await deploy()
    const { id } = await priceOf(first)
    const path = `/projects/${project_id}/prices`
    assert.equal((await app.admin.delete(`${path}/${id}`)).body.error.code, 'PRICE_IN_EFFECT')
    assert.equal((await app.admin.delete(`/formations/${first.id}`)).status, 200)
    const ended = (await app.admin.get(`${path}/${id}`)).body
    assert.ok(Date.parse(ended.effective_until) <= Date.now(), JSON.stringify(ended))
    assert.equal(ended.unit_price, 2)

    const second = await deploy()
    const next = await priceOf(second)
    assert.notEqual(next.id, id)
    assert.deepEqual([next.effective_from, next.effective_until], [ended.effective_until, null])
    const plan = await app.admin.post('/formations/plan', { project_id, formation_id: second.id, template })
    assert.deepEqual(
      plan.body.changes.map(({ action }: any) => action),
      ['no-op'],
    )
    // A change adds a successor that starts in some seconds: the teardown ends both.
    const dearer = { resources: { P: { type: 'project_price', properties: { ...properties, unit_price: 3 } } } }
    const updated = (await app.admin.put(`/formations/${second.id}`, { template: dearer })).body
    assert.equal(updated.status, 'active', JSON.stringify(updated.error))
    assert.equal((await app.admin.delete(`/formations/${second.id}`)).status, 200)
    const { data } = (await app.admin.get(path)).body
    assert.deepEqual(
      data.map(({ effective_until }: any) => effective_until === null),
      [false, false],
    )
    // By its own route: ended prices keep their time.
    const put = (effective_from: string) =>
      app.admin.put(path, { prices: [{ ...price, unit_price: 4, effective_from }] })
    assert.equal((await put('2026-02-01T00:00:00Z')).status, 400)
    const own = (await put(new Date().toISOString())).body.prices[0]
    assert.equal((await app.admin.delete(`${path}/${own.id}?end=true`)).status, 204)
    assert.notEqual((await app.admin.get(`${path}/${own.id}`)).body.effective_until, null)
  })
})
