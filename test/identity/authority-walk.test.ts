import assert from 'node:assert/strict'
import { isAllowed } from '#core/api/access.ts'
import { narrowAuthority, narrowToRequester } from '#core/iam/authority.ts'
import { type Caller, type CallerDefinition, type PrincipalRecord, principalRecord } from '#core/iam/caller.ts'
import { callerForPrincipal, effectiveCaller } from '#identity/principals/principals.ts'
import { secretKind } from '#identity/secrets/model.ts'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

const WALKS = 10_000
const STEPS = 7
const ACTIONS = ['secrets:CreateSecret', 'secrets:ListSecrets', 'secrets:DeleteSecret', 'secrets:UseSecret']

type Allows = (action: string) => boolean
/** Narrowing of an effect in the reference model: whether it is an author of a definition, and the actions it allows. */
type Narrowing = { author: boolean; allows: Allows }
/** Work on its way to an effect: as the engine has it, and as the reference does. */
type Work = { record: PrincipalRecord; own: Allows; within: readonly Narrowing[] }

/**
 * Random walks from a start to an effect: over definitions of several authors, boundaries, triggers, retries and work that
 * was stored in between. The effect happens exactly when everything on the way allows it.
 */
describe('the authority of work', function () {
  this.timeout(240_000)
  const app = forSuite(startApp)
  let projectId: string
  const principals: { ref: PrincipalRecord; allows: Allows }[] = []
  const policies: { id: string; allows: Allows }[] = []
  const boundaries: { boundary: { agent_id: string; version: number }; allows: Allows }[] = []

  // A seeded generator: a walk that differs can be walked again.
  let seed = Number(process.env.WALK_SEED ?? 20_261_124)
  const random = (below: number): number => {
    seed = (Math.imul(seed, 1_664_525) + 1_013_904_223) >>> 0
    return Math.floor((seed / 2 ** 32) * below)
  }
  const pick = <T>(items: readonly T[]): T => items[random(items.length)]

  before(async () => {
    const { admin } = app
    projectId = (await admin.post('/projects', { name: 'walks' })).body.id
    const document = (allowed: readonly string[]) => ({
      statement: [{ effect: 'Allow', action: ['agents:GetAgent', ...allowed], resource: [`srn:${projectId}:*:*`] }],
    })
    const sets = [ACTIONS, ACTIONS.slice(1), ACTIONS.slice(0, 3), [ACTIONS[0], ACTIONS[2]], [ACTIONS[1]]]
    const among =
      (allowed: readonly string[]): Allows =>
      action =>
        allowed.includes(action)
    const ref = (type: 'user' | 'api_key', id: string): PrincipalRecord => ({ type, id, via: null })
    for (const allowed of sets) {
      const user = await app.user(undefined, [document(allowed)])
      principals.push({ ref: ref('user', user.id), allows: among(allowed) })
      policies.push({
        id: (await admin.post('/policies', { document: document(allowed) })).body.id,
        allows: among(allowed),
      })
    }
    const key = await admin.post('/project-keys', { project_id: projectId, policy_ids: [policies[1].id] })
    principals.push({ ref: ref('api_key', key.body.id), allows: policies[1].allows })
    principals.push({ ref: ref('user', (await admin.get('/users/me')).body.id), allows: () => true })
    const gone = await app.user(undefined, [document(ACTIONS)])
    assert.equal((await admin.delete(`/users/${gone.id}`)).status, 204)
    principals.push({ ref: ref('user', gone.id), allows: () => false })
    const provider = { name: 'p', provider: 'custom', default_model: 'm', base_url: 'https://example.com/v1' }
    const ai_provider_id = (await admin.post('/ai-providers', { project_id: projectId, ...provider })).body.id
    for (const allowed of [ACTIONS.slice(0, 2), ACTIONS.slice(2)]) {
      const boundary_policy = document(allowed)
      const agent = await admin.post('/agents', { project_id: projectId, ai_provider_id, boundary_policy })
      boundaries.push({ boundary: { agent_id: agent.body.id, version: 1 }, allows: among(allowed) })
    }
  })

  const started = (): Work => {
    const { ref, allows } = pick(principals)
    return { record: ref, own: allows, within: [] }
  }

  /** A definition, possibly written by narrowed work. */
  function definition(): { definition: CallerDefinition; adds: (record: PrincipalRecord) => readonly Narrowing[] } {
    const author = random(12) === 0 ? null : random(3) === 0 ? walked(started(), 2) : started()
    const bounded = random(5) === 0 ? pick(boundaries) : null
    const made = { id: `tool_${random(1000)}`, author: author?.record ?? null, boundary: bounded?.boundary }
    return {
      definition: made,
      adds: record => [
        // An author is not narrowed by the author's own permissions again.
        ...(author && author.record.type === record.type && author.record.id === record.id
          ? []
          : [{ author: true, allows: author ? author.own : () => false }]),
        ...(author?.within ?? []),
        ...(bounded ? [{ author: false, allows: bounded.allows }] : []),
      ],
    }
  }

  /** The work that one step makes of work. */
  function step(work: Work): Work {
    const kind = random(10)
    if (kind < 6) {
      const { definition: used, adds } = definition()
      return { ...work, record: narrowAuthority(work.record, used), within: [...work.within, ...adds(work.record)] }
    }
    // Triggers and retried runs act as another principal, within the bounds of the caller.
    const asked = started()
    const policy = kind < 8 ? pick(policies) : null
    const via = policy && ({ type: 'trigger', id: 'trg', policy_id: policy.id, chain: ['trg'] } as const)
    const bounds = work.within.filter(({ author }) => !author)
    return {
      record: narrowToRequester({ ...asked.record, via }, work.record),
      own: asked.own,
      within: [...(policy ? [{ author: false, allows: policy.allows }] : []), ...bounds],
    }
  }

  function walked(work: Work, steps: number): Work {
    let now = work
    for (let count = random(steps + 1); count > 0; count--) now = step(now)
    return now
  }

  /** The caller of work that continues directly or after being stored, narrowed by the definition it used last. */
  async function callerOf({ record, within }: Work): Promise<{ caller: Caller | null; within: readonly Narrowing[] }> {
    const { services } = app
    const stored = await callerForPrincipal(services, record, projectId)
    if (!stored) return { caller: null, within }
    const { definition: used, adds } = definition()
    const caller = await effectiveCaller(services, stored, projectId, used)
    // Stored again, as work that it starts is.
    const again = random(2) === 0 ? caller : await callerForPrincipal(services, principalRecord(caller), projectId)
    assert.equal(again?.project_id, projectId)
    return { caller: again, within: [...within, ...adds(record)] }
  }

  it(`lets an effect happen exactly when all that led to it allow it, in ${WALKS} walks`, async () => {
    let happened = 0
    for (let walk = 0; walk < WALKS; walk++) {
      const at = seed
      const work = walked(started(), STEPS)
      const action = pick(ACTIONS)
      const { caller, within } = await callerOf(work)
      const expected = caller !== null && work.own(action) && within.every(({ allows }) => allows(action))
      const found = caller !== null && isAllowed(caller, action, { kind: secretKind, project_id: projectId })
      assert.equal(found, expected, `walk ${walk}, WALK_SEED=${at}: ${JSON.stringify(work.record)}`)
      if (caller === null) assert.equal(work.own(action), false)
      if (found) happened++
    }
    // Neither always nor never, or the walks would show nothing.
    assert.ok(happened > WALKS / 50 && happened < WALKS / 2, `${happened} of ${WALKS} effects happened`)
  })
})
