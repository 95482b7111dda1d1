import assert from 'node:assert/strict'
import { isDeepStrictEqual } from 'node:util'
import { type FlatField, flatten } from '#core/api/flatten.ts'
import type { Operation } from '#core/api/operation.ts'
import { builtInTypes } from '#formations/types/built-in.ts'
import type { BuiltInType } from '#formations/types/model.ts'
import { eventually, startApp } from '../support/app.ts'
import { readSignature, startReceiver } from '../support/receiver.ts'
import { forSuite } from '../support/suite.ts'
import { type Case, type Json, resourcesOf } from './resources.ts'

type Resources = Record<string, Case>

/** Whether the shown properties equal the declared ones: defaults may be added, and times be written otherwise. */
function says(shown: unknown, declared: unknown): boolean {
  if (isDeepStrictEqual(shown, declared)) return true
  if (Array.isArray(declared))
    return (
      Array.isArray(shown) && shown.length === declared.length && declared.every((item, at) => says(shown[at], item))
    )
  if (typeof declared === 'object' && declared !== null && typeof shown === 'object' && shown !== null)
    return Object.entries(declared).every(([key, value]) => says((shown as Json)[key], value))
  return typeof declared === 'string' && typeof shown === 'string' && Date.parse(shown) === Date.parse(declared)
}

/** Fields of bodies that are of the call, and of single types those that are no properties. */
const OF_THE_CALL = ['project_id', 'version_label', 'expected_version', 'dry_run', 'wait']
const NO_PROPERTIES: Record<string, string[]> = {
  api_key: ['projectPublicId', 'projectId', 'policyIds', 'expiresAt'],
  document: ['append'],
  file: ['name', 'path', 'storage_type', 'storage_path'],
  memory_entry: ['supersedes', 'duplicate_threshold', 'supersede_threshold'],
  session: ['actor'],
}
/** Fields whose keys are properties. */
const FLATTENED = ['guardrail.document', 'project_price.prices']

describe('resource types', () => {
  const app = forSuite(() =>
    startApp({
      workers: ['orchestration', 'delivery'],
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1', SECRETS_VAULT_ADDR: 'http://127.0.0.1:1', SECRETS_VAULT_TOKEN: 'token' },
    }),
  )
  const receiver = forSuite(startReceiver)
  let types: Map<string, BuiltInType>
  let count = 0
  before(async () => {
    types = new Map(builtInTypes(app.services).map(type => [type.name, type]))
  })

  /** A formation in a separate project, deployed by an admin. */
  const stackOf = async () => {
    const { id: project_id } = (await app.admin.post('/projects', { name: `types ${++count}` })).body
    let formation: any = null
    const stack = {
      project_id,
      name: `types ${count}`,
      get formation() {
        return formation
      },
      async deploy(template: object, body: object = {}) {
        const asked = { ...body, template }
        const reply = formation
          ? await app.admin.put(`/formations/${formation.id}`, asked)
          : await app.admin.post('/formations', { project_id, name: 'stack', ...asked })
        assert.ok(reply.status < 300, JSON.stringify(reply.body))
        formation = reply.body
        return formation
      },
      async activate(template: object) {
        const { status, error } = await stack.deploy(template)
        assert.equal(status, 'active', JSON.stringify(error))
        assert.equal(error, null)
      },
      async plan(template: object): Promise<Record<string, any>> {
        const asked = { project_id, formation_id: formation?.id, template }
        const { status, body } = await app.admin.post('/formations/plan', asked)
        assert.equal(status, 200, JSON.stringify(body))
        return Object.fromEntries(
          body.changes.filter(({ action }: any) => action !== 'no-op').map((each: any) => [each.logical_id, each]),
        )
      },
      idOf: (logicalId: string): string =>
        formation.resources.find((each: any) => each.logical_id === logicalId && each.status !== 'deleted')
          ?.physical_resource_id,
      /** A value with the referenced values in place of the expressions. */
      resolve(value: any): any {
        if (typeof value !== 'object' || value === null) return value
        if (typeof value.ref === 'string') return stack.idOf(value.ref)
        if (typeof value.sub === 'string')
          return value.sub.replace(/\$\{(\w+)\}/g, (_: string, id: string) => stack.idOf(id))
        if (Array.isArray(value)) return value.map(stack.resolve)
        return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, stack.resolve(item)]))
      },
      path(logicalId: string, { type: name, properties }: Case, operation: 'read' | 'update' | 'delete' = 'read') {
        const type = types.get(name) as BuiltInType
        const { path } = type.operations[operation] as NonNullable<BuiltInType['operations']['update']>
        const own: Json = { ...stack.resolve(properties), project_id }
        return path.replace(/\{(\w+)\}/g, (_, each: string) => own[each] ?? stack.idOf(logicalId))
      },
      /** The record that is in force: of a fact its memory. */
      async read(logicalId: string, each: Case): Promise<any> {
        const { status, body } = await app.admin.get(stack.path(logicalId, each))
        assert.equal(status, 200, `${logicalId} ${JSON.stringify(body)}`)
        if (each.type === 'memory_entry') return (await app.admin.get(`/memories/${body.memory_id}`)).body
        return each.type === 'guardrail' ? { ...body, ...body.document } : body
      },
      /** Asserts that each resource is what its template says. */
      async holds(resources: Resources) {
        for (const [logicalId, each] of Object.entries(resources)) {
          const record = await stack.read(logicalId, each)
          for (const [name, value] of Object.entries(each.properties)) {
            if (each.hidden?.includes(name) || value === undefined) continue
            const declared = value === 'soat' ? 'platform' : stack.resolve(value)
            assert.ok(
              says(record[name], declared),
              `${logicalId}.${name} is ${JSON.stringify(record[name])} in place of ${JSON.stringify(declared)}`,
            )
          }
        }
      },
    }
    return stack
  }

  const templateOf = (resources: Resources, more: object = {}) => ({
    resources: Object.fromEntries(
      Object.entries(resources).map(([id, { type, properties }]) => [id, { type, properties, ...more }]),
    ),
  })
  const laidOver = (resources: Resources, overlays: Record<string, Json>): Resources =>
    Object.fromEntries(
      Object.entries(resources).map(([id, each]) => [
        id,
        overlays[id] ? { ...each, properties: { ...each.properties, ...overlays[id] } } : each,
      ]),
    )
  const RETAINED = { deletion_policy: 'retain' }
  /** The rest of a resource once everything that may change of it has. */
  const changedOf = (resources: Resources): Resources =>
    Object.fromEntries(
      Object.entries(resources).map(([id, each]) => [
        id,
        { ...each, properties: Object.assign({}, each.properties, ...(each.changes ?? [])) },
      ]),
    )

  it('are tried with every property that they have', () => {
    const tried = new Map<string, Set<string>>()
    for (const { type, properties, changes = [], refused = {}, replaced = [] } of Object.values(resourcesOf('', ''))) {
      const names = [properties, ...changes, refused, ...replaced].flatMap(each => Object.keys(each))
      tried.set(type, new Set([...(tried.get(type) ?? []), ...names]))
    }
    for (const [name, type] of types) {
      const { properties, fixed, replaced } = type
      assert.deepEqual(
        [...properties.keys()].filter(each => !tried.get(name)?.has(each)),
        [],
        name,
      )
      const of = Object.values(resourcesOf('', '')).filter(({ type }) => type === name)
      const names = (part: (each: Case) => Json[]) => new Set(of.flatMap(part).flatMap(each => Object.keys(each)))
      const changing = names(({ changes = [] }) => changes)
      const refusing = names(({ refused = {} }) => [refused])
      const replacing = names(({ replaced = [] }) => replaced)
      for (const each of properties.keys())
        assert.ok(
          (fixed.has(each) ? refusing : replaced.has(each) ? replacing : changing).has(each),
          `no other value of ${name}.${each} is tried`,
        )
    }
  })

  it('have the fields of the bodies that create and change them', () => {
    const fieldsOf = (operation: Operation | null) =>
      [...(operation ? (flatten(operation)?.fields.values() ?? []) : [])].filter(({ in: part }) => part !== 'query')
    const nested = ({ schema }: FlatField) => ((schema.items ?? schema) as Json).properties as Json
    for (const [name, { operations, properties, kind }] of types) {
      const created = fieldsOf(operations.create)
      const updated = fieldsOf(operations.update).filter(({ in: part }) => part === 'body')
      const fields = [...created, ...updated].flatMap(field =>
        FLATTENED.includes(`${name}.${field.name}`) ? Object.keys(nested(field)) : [field.name],
      )
      const left = [...OF_THE_CALL, ...(NO_PROPERTIES[name] ?? [])]
      const expected = new Set([...fields.filter(each => !left.includes(each)), ...(kind.tags ? ['tags'] : [])])
      assert.deepEqual([...properties.keys()].sort(), [...expected].sort(), name)
    }
  })

  it('create, leave alone and change a resource property by property, and see and undo what others change', async () => {
    const stack = await stackOf()
    let resources = resourcesOf(stack.name, stack.project_id)
    await stack.activate(templateOf(resources))
    await stack.holds(resources)
    assert.deepEqual(await stack.plan(templateOf(resources)), {})
    const first = Object.fromEntries(Object.keys(resources).map(id => [id, stack.idOf(id)]))
    const rounds = Math.max(...Object.values(resources).map(({ changes = [] }) => changes.length))
    for (let round = 0; round < rounds; round++) {
      const overlays = Object.fromEntries(
        Object.entries(resources).flatMap(([id, { changes }]) => (changes?.[round] ? [[id, changes[round]]] : [])),
      )
      const next = laidOver(resources, overlays)
      const plan = await stack.plan(templateOf(next))
      assert.deepEqual(Object.keys(plan).sort(), Object.keys(overlays).sort(), `round ${round}`)
      for (const [id, { action, diff, replaces }] of Object.entries(plan)) {
        assert.deepEqual([action, replaces], ['update', undefined], id)
        assert.deepEqual(Object.keys(diff.desired).sort(), Object.keys(overlays[id]).sort(), id)
      }
      await stack.activate(templateOf(next))
      resources = next
      await stack.holds(Object.fromEntries(Object.entries(resources).filter(([id]) => overlays[id])))
    }
    await stack.holds(resources)
    assert.deepEqual(await stack.plan(templateOf(resources)), {})
    const moved = Object.keys(resources).filter(id => stack.idOf(id) !== first[id])
    assert.deepEqual(moved, ['Entry', 'PriceNow'])
    for (const [id, name] of [
      ['Secret', 'value'],
      ['Provider', 'config'],
      ['Session', 'tool_context'],
    ])
      assert.deepEqual(stack.formation.template.resources[id].properties[name], { no_echo: true })

    // A manual change is seen, and undone.
    const drifting = Object.entries(resources).filter(([, { drift }]) => drift)
    for (const [id, each] of drifting) {
      const { operations } = types.get(each.type) as BuiltInType
      const path =
        each.type === 'memory_entry'
          ? `/memories/${(await app.admin.get(stack.path(id, each))).body.memory_id}`
          : stack.path(id, each, 'update')
      const method = operations.update?.method === 'put' ? 'put' : 'patch'
      const { status, body } = await app.admin[method](path, each.drift)
      assert.equal(status, 200, `${id} ${JSON.stringify(body)}`)
    }
    const drifted = await stack.plan(templateOf(resources))
    assert.deepEqual(Object.keys(drifted).sort(), drifting.map(([id]) => id).sort())
    await stack.activate(templateOf(resources))
    await stack.holds(resources)
    assert.deepEqual(await stack.plan(templateOf(resources)), {})

    // Properties that cannot be changed are named, and nothing of their resource changes.
    for (const [id, { refused, changes: [mutable] = [{}] }] of Object.entries(resources)) {
      if (!refused) continue
      const { status, error } = await stack.deploy(
        templateOf(laidOver(resources, { [id]: { ...mutable, ...refused } })),
      )
      assert.deepEqual([status, error?.code, error?.meta.logical_id], ['failed', 'VALIDATION_FAILED', id])
      const named = error.meta.problems.map(({ path }: any) => path)
      assert.deepEqual(named.sort(), Object.keys(refused).sort(), id)
      await stack.holds({ [id]: resources[id] })
    }
    await stack.activate(templateOf(resources))

    // Another value of these makes another resource.
    for (let round = 0; round < 3; round++) {
      const overlays = Object.fromEntries(
        Object.entries(resources).flatMap(([id, { replaced }]) => (replaced?.[round] ? [[id, replaced[round]]] : [])),
      )
      const before = Object.fromEntries(
        Object.keys(overlays).map(id => [id, [stack.path(id, resources[id]), stack.idOf(id)]]),
      )
      resources = laidOver(resources, overlays)
      for (const { replaces } of Object.values(await stack.plan(templateOf(resources)))) assert.equal(replaces, true)
      await stack.activate(templateOf(resources))
      for (const [id, [path, old]] of Object.entries(before)) {
        assert.notEqual(stack.idOf(id), old)
        assert.equal((await app.admin.get(path)).status, 404, `${id} ${path}`)
      }
      await stack.holds(resources)
      assert.deepEqual(await stack.plan(templateOf(resources)), {})
    }

    // All of it goes.
    const paths = Object.entries(resources).map(([id, each]) => [id, stack.path(id, each)])
    const gone = await app.admin.delete(`/formations/${stack.formation.id}`)
    assert.equal(gone.status, 200, JSON.stringify(gone.body))
    for (const [id, path] of paths) {
      // A price in force is named by receipts, so that it stays.
      const { status } = await app.admin.get(path)
      assert.equal(status, id === 'PriceNow' ? 200 : 404, `${id} ${path}`)
    }
  })

  it('are adopted after a deploy that failed, made again when they are gone, and stay where they are to be retained', async () => {
    const stack = await stackOf()
    const resources = changedOf(resourcesOf(stack.name, stack.project_id))
    const template = templateOf(resources, RETAINED)
    const broken = {
      type: 'actor',
      properties: { name: 'x', agent_id: 'agent_00000000000000000000000000' },
      depends_on: Object.keys(resources),
    }
    const failed = await stack.deploy({ resources: { ...template.resources, Broken: broken } })
    assert.equal(failed.status, 'failed')
    assert.equal(failed.error.meta.logical_id, 'Broken', JSON.stringify(failed.error))
    const ids = Object.keys(resources).map(stack.idOf)
    assert.deepEqual(await stack.plan(template), {})
    await stack.activate(template)
    assert.deepEqual(Object.keys(resources).map(stack.idOf), ids)
    await stack.holds(resources)
    // A deleted resource is made again. A price in force stays.
    const known = stack.formation.resources.map((each: any) => each.logical_id as string).reverse()
    const order: string[] = known.filter((id: string) => id in resources && id !== 'PriceNow')
    for (const id of order) {
      const each = resources[id]
      const memory = each.type === 'memory_entry' && (await app.admin.get(stack.path(id, each))).body.memory_id
      const path = memory ? `/memories/${memory}` : stack.path(id, each, 'delete')
      const { status, body } = await app.admin.delete(each.type === 'secret' ? `${path}?force=true` : path)
      assert.ok(status < 300 || status === 404, `${id} ${JSON.stringify(body)}`)
    }
    const plan = await stack.plan(template)
    assert.deepEqual(Object.keys(plan).sort(), order.toSorted())
    for (const { action, diff } of Object.values(plan)) assert.deepEqual([action, diff.current], ['update', null])
    await stack.activate(template)
    assert.equal(
      Object.keys(resources)
        .filter((id, at) => stack.idOf(id) === ids[at])
        .join(),
      'PriceNow',
    )
    await stack.holds(resources)
    const paths = Object.entries(resources).map(([id, each]) => stack.path(id, each))
    assert.equal((await app.admin.delete(`/formations/${stack.formation.id}`)).status, 200)
    for (const path of paths) assert.equal((await app.admin.get(path)).status, 200, path)
  })

  it('do not reach into another project by any property', async () => {
    const [own, foreign] = [await stackOf(), await stackOf()]
    for (const stack of [own, foreign])
      await stack.activate(templateOf(changedOf(resourcesOf(stack.name, stack.project_id)), RETAINED))
    const missing = (id: string) => `${id.slice(0, -26)}${'0'.repeat(26)}`
    /** A value whose references are other ids. */
    const named = (value: any, name: (logicalId: string) => string): any => {
      if (typeof value !== 'object' || value === null) return value
      if (typeof value.ref === 'string') return name(value.ref)
      if (Array.isArray(value)) return value.map(each => named(each, name))
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, named(item, name)]))
    }
    const outcome = async (type: string, properties: Json, id: string) => {
      const template = { resources: { It: { type, properties } } }
      const asked = { project_id: own.project_id, name: `one ${++count}`, template }
      const { status, body } = await app.admin.post('/formations', asked)
      assert.ok(status === 201 || status === 400, JSON.stringify(body))
      const { code, message } = body.error ?? {}
      return [body.status, code, message?.replaceAll(id, 'the id')]
    }
    const seen = new Set<string>(['policy_id', 'policy_ids'])
    const through: string[] = []
    for (const { type, properties, changes = [], refused = {} } of Object.values(resourcesOf('', ''))) {
      let state = properties
      for (const overlay of [{}, ...changes, refused]) {
        state = { ...state, ...overlay }
        for (const [name, value] of Object.entries(state)) {
          const refs = JSON.stringify(value ?? null).match(/\{"ref":"(\w+)"\}/)
          if (!refs || seen.has(name) || seen.has(`${type}.${name}`)) continue
          seen.add(`${type}.${name}`)
          const others = { ...own.resolve(state), name: `one ${count}`, external_id: undefined }
          const known = Object.fromEntries(Object.entries(others).filter(([key]) => key in state))
          const theirs = foreign.idOf(refs[1])
          const none = missing(theirs)
          const first = await outcome(type, { ...known, [name]: named(value, () => theirs) }, theirs)
          const second = await outcome(type, { ...known, [name]: named(value, () => none) }, none)
          assert.deepEqual(first, second, `${type}.${name}`)
          if (first[0] === 'active') through.push(`${type}.${name}`)
          else
            assert.ok(
              JSON.stringify(first).match(/NOT_FOUND|VALIDATION_FAILED|PIPELINE_INVALID_STEP/),
              `${type}.${name} ${first}`,
            )
        }
      }
    }
    // A reference of a node is looked up when a run reaches it.
    assert.deepEqual(through, ['orchestration.nodes'])
  })

  it('refuse immediately values that their text excludes', async () => {
    const agent = (properties: object) => ({ type: 'agent', properties: { name: 'a', ...properties } })
    const template = {
      parameters: { Class: {} },
      resources: {
        Tool: { type: 'tool', properties: { name: 't', execute: { url: 'https://example.com' } } },
        Inline: agent({ tool_bindings: [{ tool_id: { ref: 'Tool' } }, { tool: { name: 'x' } }] }),
        Wrong: { type: 'guardrail', properties: { name: 'g', class: { nothing: [] } } },
        Unsure: { type: 'guardrail', properties: { name: 'g', class: { param: 'Class' } } },
        Classless: { type: 'guardrail', properties: { name: 'g', guard: true } },
        Cycle: {
          type: 'orchestration',
          properties: {
            name: 'o',
            nodes: ['a', 'b'].map(id => ({ id, type: 'tool', tool_id: { ref: 'Tool' } })),
            edges: [
              { from: 'a', to: 'b' },
              { from: 'b', to: 'nowhere' },
            ],
          },
        },
        Flow: { type: 'workflow', properties: { name: 'w', states: [{ name: 'a' }], transitions: [] } },
        Play: { type: 'playbook', properties: { name: 'p', steps: [] } },
        Key: { type: 'project_key', properties: { name: 'k' } },
      },
    }
    const { body } = await app.admin.post('/formations/validate', { template })
    assert.deepEqual(body.errors.map(({ path }: any) => path).sort(), [
      'resources.Classless.properties.class',
      'resources.Cycle.properties.edges[1].to',
      'resources.Flow.properties.states',
      'resources.Inline.properties.tool_bindings[1].tool',
      'resources.Play.properties.steps',
      'resources.Wrong.properties.class',
    ])
  })

  it('make the document of a guardrail from the declaration', async () => {
    const stack = await stackOf()
    const declared = (properties: object) => ({
      resources: { G: { type: 'guardrail', properties: { name: 'g', class: 'B', ...properties } } },
    })
    await stack.activate(declared({ guard: { '==': [1, 1] }, escalate: true }))
    assert.deepEqual(Object.keys((await stack.plan(declared({ escalate: true }))).G.diff.desired), ['guard'])
    await stack.activate(declared({ escalate: true }))
    const { document } = (await app.admin.get(`/guardrails/${stack.idOf('G')}`)).body
    assert.deepEqual(document, { class: 'B', escalate: true })
    assert.deepEqual(await stack.plan(declared({ escalate: true })), {})
  })

  it('state a fact whatever the store contains already', async () => {
    const stack = await stackOf()
    const store = (await app.admin.post('/memory-stores', { project_id: stack.project_id, name: 's' })).body.id
    const fact = { memory_store_id: store, content: 'The shop opens at nine.' }
    const known = (await app.admin.post('/memory-entries', fact)).body
    const template = { resources: { E: { type: 'memory_entry', properties: { ...fact, tags: { kind: 'hours' } } } } }
    await stack.activate(template)
    const entry = (await app.admin.get(`/memory-entries/${stack.idOf('E')}`)).body
    assert.deepEqual([entry.action, entry.mechanism], ['created', 'formation'])
    assert.notEqual(entry.memory_id, known.memory_id)
    // A caller replaces the fact: the fact of the template replaces that in turn.
    const theirs = { ...fact, content: 'The shop is closed.', supersedes: entry.memory_id }
    const other = (await app.admin.post('/memory-entries', theirs)).body
    assert.deepEqual(Object.keys((await stack.plan(template)).E.diff.desired), ['content'])
    await stack.activate(template)
    const again = (await app.admin.get(`/memory-entries/${stack.idOf('E')}`)).body
    assert.equal(again.superseded_memory_id, other.memory_id)
    assert.deepEqual((await app.admin.get(`/memories/${again.memory_id}`)).body.tags, { kind: 'hours' })
  })

  it('show signing secrets and upload addresses to callers with the permission', async () => {
    const { key } = await app.projectWith(['formations:*', 'webhooks:*', 'triggers:*', 'tools:*'])
    const template = {
      resources: {
        Hook: { type: 'webhook', properties: { name: 'h', url: receiver.url, events: ['tools.created'] } },
        Tool: { type: 'tool', properties: { name: 't', execute: { url: 'https://example.com' } } },
        Trigger: {
          type: 'trigger',
          properties: { name: 'in', type: 'webhook', target_type: 'tool', target_id: { ref: 'Tool' } },
        },
      },
      outputs: {
        secret: { ref_attr: 'Hook.secret' },
        trigger: { ref: 'Trigger' },
        trigger_secret: { ref_attr: 'Trigger.secret' },
        hook_url: { ref_attr: 'Trigger.hook_url' },
      },
    }
    const { body } = await key.post('/formations', { name: 'signed', template })
    assert.equal(body.status, 'active', JSON.stringify(body))
    const { outputs } = body
    const trigger = (await key.get(`/triggers/${outputs.trigger}`)).body
    assert.equal(outputs.hook_url, trigger.hook_url)
    assert.equal(outputs.trigger_secret, (await key.get(`/triggers/${trigger.id}/secret`)).body.secret)
    const denied = { effect: 'Deny', action: ['webhooks:GetWebhookSecret', 'triggers:GetTriggerSecret'] }
    const allowed = { effect: 'Allow', action: ['*'] }
    const reader = await app.user(undefined, [{ statement: [allowed, denied] }])
    const shown = (await reader.get(`/formations/${body.id}`)).body.outputs
    assert.deepEqual(shown, { ...outputs, secret: { no_echo: true }, trigger_secret: { no_echo: true } })
    assert.equal((await key.post('/tools', { name: 'x', execute: { url: 'https://example.com' } })).status, 201)
    await eventually(() => receiver.requests.length > 0)
    for (const request of receiver.requests) assert.deepEqual(readSignature(request, outputs.secret).verified, [true])
  })

  it('are held to what a project may store', async () => {
    const { id, key } = await app.project()
    const quota = { scope: 'project', metric: 'storage_bytes', window: 'current', limit: 10, mode: 'enforce' }
    assert.equal((await key.post('/quotas', quota)).status, 201)
    const store = (await key.post('/memory-stores', { name: 's' })).body.id
    const dataset = (await key.post('/datasets', { name: 'd' })).body.id
    const text = 'More than ten bytes.'
    for (const [type, properties] of [
      ['file', { filename: 'a', size: 11 }],
      ['document', { content: text }],
      ['memory_entry', { memory_store_id: store, content: text }],
      ['dataset_item', { dataset_id: dataset, input: [{ role: 'user', content: text }] }],
    ]) {
      const template = { resources: { It: { type, properties } } }
      const { body } = await key.post('/formations', { name: `${type} of ${id}`, template })
      assert.equal(body.error?.code, 'QUOTA_STORAGE_EXCEEDED', `${type} ${JSON.stringify(body)}`)
    }
  })

  it('follow prices in force, and keep those', async () => {
    const stack = await stackOf()
    const price = { provider: 'custom', model: `m ${stack.name}`, component: 'input_tokens', unit: 'token' }
    const book = { prices: [{ ...price, unit_price: 1, effective_from: '2020-01-01T00:00:00Z' }] }
    assert.equal((await app.admin.put('/usage/prices', book)).status, 200)
    const template = (unit_price: number) => ({
      resources: { P: { type: 'project_price', properties: { ...price, unit_price } } },
      outputs: { price: { ref_attr: 'P.unit_price' } },
    })
    await stack.activate(template(2))
    assert.equal(stack.formation.outputs.price, '2')
    const path = `/projects/${stack.project_id}/prices/${stack.idOf('P')}`
    const { effective_from } = (await app.admin.get(path)).body
    assert.ok(Date.parse(effective_from) > Date.now(), 'it begins once it is written')
    // A future price is changed in place, and deleted.
    await stack.activate(template(3))
    assert.equal((await app.admin.get(path)).body.unit_price, 3)
    assert.equal((await app.admin.delete(`/formations/${stack.formation.id}`)).status, 200)
    assert.equal((await app.admin.get(path)).status, 404)
  })

  it('make keys of a key with its limits only', async () => {
    const { id, key, keyId } = await app.project()
    const { policy_ids } = (await app.admin.get(`/project-keys/${keyId}`)).body
    const wider = (await app.admin.post('/policies', { document: { statement: [{ effect: 'Allow', action: ['*'] }] } }))
      .body
    const template = (properties: object) => ({
      resources: { K: { type: 'api_key', properties } },
      outputs: { secret: { ref_attr: 'K.secret' } },
    })
    for (const properties of [{ policy_ids: [] }, { policy_ids: [wider.id] }, { allowed_ips: ['10.0.0.0/8'] }]) {
      const named = template({ name: 'k', ...properties })
      const { body } = await key.post('/formations', { name: `refused ${++count}`, template: named })
      assert.equal(body.error?.code, 'FORBIDDEN', JSON.stringify(body))
    }
    const { body: made } = await key.post('/formations', { name: 'made', template: template({ name: 'k' }) })
    assert.equal(made.status, 'active', JSON.stringify(made.error))
    const [{ physical_resource_id }] = made.resources
    const record = (await app.admin.get(`/project-keys/${physical_resource_id}`)).body
    assert.deepEqual([record.policy_ids, record.project_id], [policy_ids, id])
    assert.equal((await app.as(made.outputs.secret).get('/agents')).status, 200)
    assert.deepEqual((await key.get(`/formations/${made.id}`)).body.outputs.secret, { no_echo: true })
    assert.equal((await key.post('/project-keys', { name: 'x' })).body.error.code, 'FORBIDDEN')
    assert.equal((await key.delete(`/project-keys/${physical_resource_id}`)).body.error.code, 'FORBIDDEN')
    assert.equal((await key.delete(`/formations/${made.id}`)).status, 200)
    assert.equal((await app.as(made.outputs.secret).get('/agents')).status, 401)
  })

  it('require the permission on the parent of the resource, and for the role of an admin', async () => {
    const { id, key } = await app.project()
    const [dataset, other] = await Promise.all(
      ['one', 'two'].map(async name => (await key.post('/datasets', { name })).body.id),
    )
    const statement = [
      { effect: 'Allow', action: ['formations:*'], resource: [`srn:${id}:*:*`] },
      { effect: 'Allow', action: ['evaluations:*'], resource: [`srn:${id}:dataset:${dataset}`] },
    ]
    const policy = (await app.admin.post('/policies', { document: { statement } })).body.id
    const made = await app.admin.post('/project-keys', { project_id: id, policy_ids: [policy] })
    const limited = app.as(made.body.secret)
    const template = (dataset_id: string) => ({
      resources: { I: { type: 'dataset_item', properties: { dataset_id, input: [{ role: 'user', content: 'x' }] } } },
    })
    const { body: stack } = await limited.post('/formations', { name: 'own', template: template(dataset) })
    assert.equal(stack.status, 'active', JSON.stringify(stack))
    assert.equal((await limited.delete(`/formations/${stack.id}`)).status, 200)
    const { body: refused } = await limited.post('/formations', { name: 'other', template: template(other) })
    assert.deepEqual(refused.error?.meta.denied_actions, [
      { logical_id: 'I', resource_type: 'dataset_item', action: 'evaluations:CreateDataset' },
    ])
    const document = { statement: [{ effect: 'Allow', action: ['*'] }] }
    const global = { resources: { P: { type: 'policy', properties: { document } } } }
    const { body: unadmitted } = await key.post('/formations', { name: 'policies', template: global })
    assert.deepEqual(
      unadmitted.error?.meta.denied_actions.map(({ action }: any) => action),
      ['policies:CreatePolicy'],
    )
  })
})
