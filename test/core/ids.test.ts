import assert from 'node:assert/strict'
import { isIdOf, kinds } from '#core/api/kind.ts'
import { idFloor, newId } from '#core/base/ids.ts'
import { loadModules } from '#core/modules/module.ts'
import { modules } from '#modules.ts'

const ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz'

/** Milliseconds in the first 48 bits of an id's 128. */
function timeOf(id: string): number {
  const text = id.slice(-26)
  return Number([...text].reduce((value, digit) => value * 32n + BigInt(ALPHABET.indexOf(digit)), 0n) >> 80n)
}

/** Kinds with their prefixes. A separate kind for each, and each for one kind. */
const PREFIXES: Record<string, string> = {
  trigger: 'trg',
  trigger_firing: 'trg_fire',
  usage: 'ue',
  usage_threshold: 'uthr',
  user: 'user',
  price: 'price',
  project: 'proj',
  project_key: 'key',
  oauth_client: 'oac',
  oauth_grant: 'ogr',
  orchestration: 'orch',
  orchestration_run: 'orch_run',
  workflow: 'wfl',
  task: 'task',
  case: 'case',
  case_timeline_entry: 'case_evt',
  case_evidence: 'case_evd',
  case_link: 'case_link',
  playbook: 'pbk',
  playbook_execution: 'pbk_exec',
  playbook_export: 'pbk_exp',
  dataset: 'dset',
  dataset_item: 'dsit',
  eval: 'eval',
  eval_run: 'evrun',
  eval_result: 'evres',
  policy: 'pol',
  secret: 'sec',
  actor: 'actor',
  conversation: 'conv',
  session: 'sess',
  ai_provider: 'aip',
  agent: 'agent',
  tool: 'tool',
  generation: 'gen',
  trace: 'trace',
  event: 'evt',
  webhook: 'wh',
  webhook_delivery: 'whd',
  file: 'file',
  quota: 'quota',
  audit_entry: 'audit',
  chain: 'chain',
  chat: 'chat',
  document: 'doc',
  ingestion_rule: 'igr',
  memory: 'mem',
  memory_entry: 'mem_entry',
  memory_rule: 'mrule',
  memory_store: 'mstore',
  metadata_schema: 'mdschema',
  model_route: 'route',
  guardrail: 'guard',
  guardrail_evaluation: 'gev',
  approval: 'apr',
  share: 'shr',
  decider: 'dcd',
  decision: 'dec',
  activity: 'acte',
  exception: 'exc',
  feedback: 'fb',
  formation: 'form',
  prepared_reply: 'prep',
  saved_view: 'view',
  session_note: 'snote',
}

describe('ids', () => {
  before(() => loadModules(modules))

  it('have the prefix of their kind', () => {
    assert.deepEqual(Object.fromEntries(kinds.all().map(({ name, prefix }) => [name, prefix])), PREFIXES)
    assert.equal(new Set(Object.values(PREFIXES)).size, Object.keys(PREFIXES).length)
  })

  it('are a prefix and 26 characters of lower-case Crockford base32', () => {
    for (const prefix of ['proj', 'mem_entry', 'guard_ver'])
      assert.match(newId(prefix), new RegExp(`^${prefix}_[0-7][0-9a-hjkmnp-tv-z]{25}$`))
  })

  it('begin with the millisecond of their making', () => {
    const before = Date.now()
    const time = timeOf(newId('evt'))
    assert.ok(time >= before && time <= Date.now())
  })

  it('rise in the order of their making and never repeat, also within a millisecond', () => {
    const ids = Array.from({ length: 200_000 }, () => newId('evt'))
    for (let index = 1; index < ids.length; index++) assert.ok(ids[index] > ids[index - 1], `${ids[index]}`)
  })

  it('cannot be guessed from another one of a later millisecond', async () => {
    const first = newId('evt').slice(-16)
    await new Promise(resolve => setTimeout(resolve, 3))
    const second = newId('evt').slice(-16)
    assert.ok([...first].filter((digit, index) => digit === second[index]).length < 10)
  })

  it('have a floor for each time', () => {
    const time = new Date()
    assert.ok(idFloor('evt', time) <= newId('evt'))
    assert.ok(idFloor('evt', new Date(time.getTime() + 1000)) > newId('evt'))
    assert.equal(idFloor('evt', new Date(-5)), `evt_${'0'.repeat(26)}`)
  })

  it('are recognised by prefix, length and alphabet', () => {
    const kind = { prefix: 'proj', fixedIds: ['proj_fixed'] }
    const id = newId('proj')
    assert.ok(isIdOf(kind, id))
    assert.ok(isIdOf(kind, 'proj_fixed'))
    for (const wrong of [
      '',
      'proj_',
      id.toUpperCase(),
      id.slice(0, -1),
      `${id}0`,
      ` ${id}`,
      `${id}\n`,
      id.replace('proj', 'user'),
      `xproj_${id.slice(5)}`,
      `${id.slice(0, -1)}u`,
      `${id.slice(0, -1)}l`,
      newId('proj_x'),
    ])
      assert.ok(!isIdOf(kind, wrong), wrong)
  })
})
