import assert from 'node:assert/strict'
import { eventually, startApp } from '../support/app.ts'
import { type HostedProcess, runWorker } from '../support/hosts.ts'
import { startProcess } from '../support/processes.ts'
import { rounds } from '../support/rounds.ts'
import { forSuite } from '../support/suite.ts'

/** Pairs of templates, and those whose workers are killed. */
const SEEDS = rounds('FORMATION_SEEDS', 4, 200)
const KILLS = rounds('FORMATION_KILLS', 1, 40)
const FIRST = Number(process.env.FORMATION_FIRST ?? 1)
const FAST = { WORKER_HEARTBEAT_INTERVAL_MS: '200', SHUTDOWN_GRACE_MS: '500' }

type Random = (below: number) => number
type Template = { resources: Record<string, { type: string; properties: Record<string, unknown> }> }

/** A sequence that a seed determines. */
function sequence(seed: number): Random {
  let state = (seed * 7919 + 17) % 2147483647
  return below => {
    state = (state * 48271) % 2147483647
    return state % below
  }
}

const PATHS: Record<string, string> = {
  ai_provider: '/ai-providers',
  agent: '/agents',
  actor: '/actors',
  memory_store: '/memory-stores',
  dataset: '/datasets',
  secret: '/secrets',
  webhook: '/webhooks',
  quota: '/quotas',
  metadata_schema: '/metadata-schemas',
  document: '/documents',
}

/** What a resource declares: always the same names, so that nothing of an earlier template stays. */
const PROPERTIES: Record<string, (id: string, random: Random, ids: (type: string) => string | null) => object> = {
  ai_provider: (id, random) => ({
    name: `${id} ${random(3)}`,
    provider: 'ollama',
    default_model: `model ${random(3)}`,
  }),
  agent: (id, random, ids) => ({
    name: `${id} ${random(3)}`,
    instructions: random(2) ? null : `do ${random(3)}`,
    max_steps: random(2) ? null : 1 + random(5),
    ai_provider_id: { ref: ids('ai_provider') },
  }),
  actor: (id, random, ids) => ({
    name: `${id} ${random(3)}`,
    external_id: `${id} ${random(3)}`,
    tags: random(2) ? {} : { tag: `${random(3)}` },
    agent_id: ids('agent') && random(2) ? { ref: ids('agent') } : null,
  }),
  memory_store: (id, random) => ({
    name: `${id} ${random(3)}`,
    description: random(2) ? null : `about ${random(3)}`,
    duplicate_threshold: random(2) ? null : 0.91 + random(5) / 100,
  }),
  dataset: (id, random) => ({ name: `${id} ${random(3)}`, description: random(2) ? null : `about ${random(3)}` }),
  secret: (id, random) => ({ name: id, value: `value ${random(3)}` }),
  webhook: (id, random) => ({
    name: `${id} ${random(3)}`,
    url: `https://example.com/${random(3)}`,
    events: random(2) ? ['agents.created'] : ['agents.created', 'agents.deleted'],
    active: random(2) === 0,
  }),
  quota: (_id, random) => ({
    scope: 'project',
    metric: 'requests',
    window: 'rolling_24h',
    limit: 1000 + random(3),
    mode: random(2) ? 'monitor' : 'enforce',
  }),
  metadata_schema: (id, random) => ({
    resource_type: random(2) ? 'document' : 'file',
    path_prefix: `/schemas/${id}/`,
    schema: { type: 'object', title: `${random(3)}` },
  }),
  document: (id, random) => ({
    path: `/docs/${id}.txt`,
    content: `text ${random(3)}`,
    title: random(2) ? null : 'a title',
  }),
}

/** The names of a run and their types are fixed; a template declares some of them. */
function templateOf(random: Random): Template {
  const types = Object.keys(PROPERTIES)
  const names = Array.from({ length: 16 }, (_, n) => ({ id: `R${n}`, type: types[n % types.length] }))
  const declared = names.filter(({ id, type }) =>
    type === 'ai_provider' ? id === 'R0' || random(3) > 0 : random(3) > 0,
  )
  const resources = declared.map(({ id, type }) => {
    const ids = (wanted: string) => {
      const known = declared.filter(each => each.type === wanted)
      return known.length === 0 ? null : known[random(known.length)].id
    }
    return [id, { type, properties: PROPERTIES[type](id, random, ids) }] as const
  })
  // Not in the order of their references.
  return { resources: Object.fromEntries(resources.sort(() => random(3) - 1)) as Template['resources'] }
}

describe('random templates', function () {
  this.timeout(600_000)
  const app = forSuite(startApp)
  let deploying: HostedProcess | undefined

  const ok = async (reply: Promise<{ status: number; body: any }>): Promise<any> => {
    const { status, body } = await reply
    assert.ok(status < 300, `${status} ${JSON.stringify(body)}`)
    return body
  }
  const project = async (): Promise<string> => (await ok(app.admin.post('/projects', { name: 'random' }))).id
  const begin = async () => {
    deploying = await runWorker(app.databaseUrl, FAST, ['orchestration'])
  }
  const end = async () => {
    await deploying?.stop()
    deploying = undefined
  }
  const planned = async (body: object): Promise<[string, string][]> =>
    (await ok(app.admin.post('/formations/plan', body))).changes.map(({ logical_id, action, replaces }: any) => [
      logical_id,
      replaces ? 'replace' : action,
    ])
  const settled = (id: string): Promise<any> =>
    eventually(
      async () => {
        const { body } = await app.admin.get(`/formations/${id}`)
        return /ing$/.test(body.status) ? null : body
      },
      { within: 120_000 },
    )
  /** Deploys, with a worker killed where `fault` says; gives the action on each resource, in order. */
  const deployed = async (id: string | null, body: object, fault?: string): Promise<[any, [string, string][]]> => {
    const asked = await ok(
      id === null
        ? app.admin.post('/formations?wait=false', body)
        : app.admin.put(`/formations/${id}?wait=false`, body),
    )
    if (fault) {
      const doomed = await startProcess('worker', app.databaseUrl, { ...FAST, FAULT_POINTS: fault }, ['orchestration'])
      await Promise.race([doomed.exited, settled(asked.id)])
      await doomed.kill()
      await begin()
    }
    const formation = await settled(asked.id)
    assert.equal(formation.status, 'active', JSON.stringify(formation.error))
    const { events } = (await ok(app.admin.get(`/formations/${asked.id}/events`))).data.at(-1)
    if (fault) await end()
    return [formation, events.map(({ logical_id, action }: any) => [logical_id, action])]
  }
  /** The content of a project, without ids: ids of its resources by their logical names. */
  const shown = async ({ resources, template }: any): Promise<unknown> => {
    const live = resources.filter(({ status }: any) => status !== 'deleted')
    const logical = new Map(live.map((each: any) => [each.physical_resource_id, each.logical_id]))
    const records = await Promise.all(
      live.map(async ({ logical_id, resource_type, physical_resource_id }: any) => {
        const record = await ok(app.admin.get(`${PATHS[resource_type]}/${physical_resource_id}`))
        const names = Object.keys(template.resources[logical_id].properties).filter(name => name !== 'value')
        return [logical_id, Object.fromEntries(names.map(name => [name, logical.get(record[name]) ?? record[name]]))]
      }),
    )
    return Object.fromEntries(records)
  }
  const requireSettled = async (formation: any) => {
    const again = await planned({ project_id: formation.project_id, formation_id: formation.id })
    assert.ok(
      again.every(([, action]) => action === 'no-op'),
      JSON.stringify(again),
    )
  }

  const pair = async (seed: number, kills: boolean) => {
    const random = sequence(seed)
    const [a, b] = [templateOf(random), templateOf(random)]
    const fault = () =>
      kills ? `${random(2) ? 'formation_step' : 'formation_called'}=kill:${1 + random(8)}` : undefined
    const one = await project()
    const first = await planned({ project_id: one, template: a })
    const [before, made] = await deployed(null, { project_id: one, name: 'pair', template: a }, fault())
    assert.deepEqual(made, first)
    await requireSettled(before)
    const second = await planned({ project_id: one, formation_id: before.id, template: b })
    const [after, done] = await deployed(before.id, { template: b }, fault())
    assert.deepEqual(
      done.filter(([, action]) => action !== 'replace-cleanup'),
      second,
    )
    assert.deepEqual(
      done.filter(([, action]) => action === 'replace-cleanup').map(([id]) => id),
      second.filter(([, action]) => action === 'replace').map(([id]) => id),
    )
    await requireSettled(after)
    if (kills) await begin()
    const other = await project()
    const [alone] = await deployed(null, { project_id: other, name: 'pair', template: b })
    assert.deepEqual(await shown(after), await shown(alone))
    for (const { id } of [after, alone])
      assert.deepEqual(await ok(app.admin.delete(`/formations/${id}`)), { success: true })
    if (kills) await end()
    for (const path of Object.values(PATHS))
      assert.equal((await ok(app.admin.get(`${path}?project_id=${one}`))).total, 0, path)
  }
  afterEach(end)

  it('do what their plans say, and leave what deploying the last one alone leaves', async () => {
    await begin()
    for (let seed = FIRST; seed < FIRST + SEEDS; seed++)
      await pair(seed, false).catch(error => {
        error.message = `seed ${seed}: ${error.message}`
        throw error
      })
  })

  it('do so where workers are killed at random points', async () => {
    for (let seed = FIRST; seed < FIRST + KILLS; seed++)
      await pair(1000 + seed, true).catch(error => {
        error.message = `seed ${seed}: ${error.message}`
        throw error
      })
  })
})
