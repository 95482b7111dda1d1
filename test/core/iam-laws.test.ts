import assert from 'node:assert/strict'
import { couldAllow, type DecisionRequest, decide, type Layer, refusingLayer } from '#core/iam/decide.ts'
import { explain } from '#core/iam/explain.ts'
import { compileGlob, globMatches } from '#core/iam/glob.ts'
import { compileDocument, type PolicyStatement } from '#core/iam/policy.ts'
import { random } from '../support/random.ts'

/** Layers of documents of statements, before compilation. */
type Policies = PolicyStatement[][][]

const ACTIONS = ['files:GetFile', 'files:CreateFile', 'agents:GetAgent', 'agents:ListAgents']
const ACTION_PATTERNS = [...ACTIONS, 'files:*', 'files:Get*', 'agents:*', '*']
const PATHS = ['/a', '/a/b', '/a/b/c', '/x']
const TEAMS = ['red', 'blue', 'redder']

const compile = (policies: Policies): Layer[] =>
  policies.map(documents => ({
    kind: 'user',
    documents: documents.map(statement => compileDocument({ statement })),
  }))

/** Random policies and requests of one seed. */
function generator(seed: number) {
  const next = random(seed)
  const pick = <T>(items: readonly T[]): T => items[next(items.length)]
  const some = <T>(make: () => T, most: number): T[] => Array.from({ length: 1 + next(most) }, make)

  const id = () => pick(['*', 'file_1', 'file_2', 'agent_1', '/*', '/a*', '/a/?', ...PATHS])
  const condition = () => ({
    [pick(['StringEquals', 'StringNotEquals', 'StringLike', 'StringNotLike'])]: {
      [pick(['svc:ResourceTag/team', 'svc:RequestTag/team', 'svc:PrincipalId', 'svc:ResourceType'])]: some(
        () => pick([...TEAMS, 'red*', '*', 'user_1', 'file']),
        2,
      ),
    },
  })
  const statement = (): PolicyStatement => ({
    effect: next(3) > 0 ? 'Allow' : 'Deny',
    action: some(() => pick(ACTION_PATTERNS), 2),
    ...(next(3) > 0 && {
      resource: some(() => `srn:${pick(['*', 'P', 'Q'])}:${pick(['*', 'file', 'agent'])}:${id()}`, 3),
    }),
    ...(next(3) === 0 && { condition: condition() }),
  })
  const tags = () => pick([null, {}, ...TEAMS.map(team => ({ team }))])
  const request = (): DecisionRequest => {
    const [project, type] = [pick(['P', 'Q']), pick(['file', 'agent'])]
    const names = [`srn:${project}:${type}:${type}_${1 + next(2)}`]
    if (type === 'file' && next(2) === 0) names.push(`srn:${project}:file:${pick(PATHS)}`)
    return {
      action: pick(ACTIONS),
      names,
      type,
      resourceTags: next(4) === 0 ? [tags(), tags()] : tags(),
      ...(next(2) === 0 && { requestTags: { team: pick(TEAMS) } }),
      facts: { principal_id: pick(['user_1', 'user_2']), principal_type: 'user', credential_type: 'user' },
    }
  }
  const policies = (): Policies => some(() => some(() => some(statement, 4), 2), 2)
  const shuffle = <T>(items: readonly T[]): T[] =>
    items
      .map(item => ({ item, order: next(1_000_000) }))
      .sort((a, b) => a.order - b.order)
      .map(({ item }) => item)
  return { next, pick, statement, condition, request, policies, shuffle }
}

type Generator = ReturnType<typeof generator>

/** Changes one random statement of an effect; null if there is none. */
function changeStatement(
  { pick }: Generator,
  policies: Policies,
  effect: PolicyStatement['effect'],
  change: (statement: PolicyStatement) => PolicyStatement[],
): Policies | null {
  const candidates = policies.flat(2).filter(statement => statement.effect === effect)
  if (candidates.length === 0) return null
  const changed = pick(candidates)
  return policies.map(documents =>
    documents.map(statements =>
      statements.flatMap(statement => (statement === changed ? change(statement) : [statement])),
    ),
  )
}

const widenings: ((statement: PolicyStatement) => PolicyStatement)[] = [
  statement => ({ ...statement, action: ['*'] }),
  ({ resource: _, ...statement }) => statement,
  ({ condition: _, ...statement }) => statement,
  statement => ({ ...statement, action: [...statement.action, 'files:*'] }),
  statement => ({ ...statement, action: statement.action.map(action => action.replace(/:.*/, ':*')) }),
  statement => ({ ...statement, resource: statement.resource?.map(name => name.replace(/^srn:[^:]*/, 'srn:*')) }),
  statement => ({ ...statement, resource: statement.resource?.map(name => name.replace(/(:\/.*|:[^:/]*)$/, ':*')) }),
]

describe('laws of decisions', () => {
  /** Checks a law on random policies and requests; both decisions must occur. */
  function holds(law: (g: Generator, policies: Policies, request: DecisionRequest, allowed: boolean) => void): void {
    const counts = { true: 0, false: 0 }
    for (let seed = 1; seed <= 3000; seed++) {
      const g = generator(seed)
      const policies = g.policies()
      const request = g.request()
      const allowed = decide(compile(policies), request)
      counts[`${allowed}`]++
      try {
        law(g, policies, request, allowed)
      } catch (error) {
        assert.fail(`seed ${seed}: ${(error as Error).message}\n${JSON.stringify({ policies, request }, null, 1)}`)
      }
    }
    assert.ok(counts.true > 300 && counts.false > 300, JSON.stringify(counts))
  }

  it('a Deny wins: an added Deny grants nothing, a matching Deny refuses', () =>
    holds((g, policies, request, allowed) => {
      const [[first, ...documents], ...layers] = policies
      const withDeny = (deny: PolicyStatement) => compile([[[...first, deny], ...documents], ...layers])
      const some = decide(withDeny({ ...g.statement(), effect: 'Deny' }), request)
      assert.ok(allowed || !some)
      const matching: PolicyStatement = { effect: 'Deny', action: [request.action], resource: [g.pick(request.names)] }
      assert.equal(decide(withDeny(matching), request), false)
    }))

  it('the order of layers, documents, statements, names and tag sets is irrelevant', () =>
    holds((g, policies, request, allowed) => {
      const shuffled = g.shuffle(
        policies.map(documents => g.shuffle(documents.map(statements => g.shuffle(statements)))),
      )
      const { names, resourceTags } = request
      const tags = Array.isArray(resourceTags) ? g.shuffle(resourceTags) : resourceTags
      assert.equal(decide(compile(shuffled), { ...request, names: g.shuffle(names), resourceTags: tags }), allowed)
    }))

  it('layers narrow: together they allow what each allows', () =>
    holds((g, policies, request, allowed) => {
      const added = g.policies()
      assert.equal(decide(compile([...policies, ...added]), request), allowed && decide(compile(added), request))
    }))

  it('the division into documents is irrelevant', () =>
    holds((_, policies, request, allowed) => {
      assert.equal(decide(compile(policies.map(documents => [documents.flat()])), request), allowed)
    }))

  it('a wider Allow revokes nothing, a wider Deny grants nothing', () =>
    holds((g, policies, request, allowed) => {
      const widen = g.pick(widenings)
      const allows = changeStatement(g, policies, 'Allow', statement => [widen(statement)])
      if (allows && allowed) assert.ok(decide(compile(allows), request), 'Allow')
      const denies = changeStatement(g, policies, 'Deny', statement => [widen(statement)])
      if (denies && !allowed) assert.ok(!decide(compile(denies), request), 'Deny')
    }))

  it('without a statement, or with a further condition, an Allow grants no more and a Deny refuses no more', () =>
    holds((g, policies, request, allowed) => {
      const narrow = (statement: PolicyStatement): PolicyStatement[] =>
        g.next(2) === 0 ? [] : [{ ...statement, condition: { ...g.condition(), ...statement.condition } }]
      const allows = changeStatement(g, policies, 'Allow', narrow)
      if (allows && !allowed) assert.ok(!decide(compile(allows), request), 'Allow')
      const denies = changeStatement(g, policies, 'Deny', narrow)
      if (denies && allowed) assert.ok(decide(compile(denies), request), 'Deny')
    }))

  it('every tag set must be allowed', () =>
    holds((_, policies, request, allowed) => {
      const { resourceTags } = request
      if (!Array.isArray(resourceTags)) return
      const each = resourceTags.map(tags => decide(compile(policies), { ...request, resourceTags: tags }))
      assert.equal(each.every(Boolean), allowed)
    }))

  it('an invalid document refuses everything', () =>
    holds((_, policies, request) => {
      const [layer, ...layers] = compile(policies)
      const documents = [...layer.documents, compileDocument({ statement: [{ effect: 'Maybe' }] })]
      assert.equal(decide([{ ...layer, documents }, ...layers], request), false)
    }))

  it('a decision agrees with its explanation, and is possible', () =>
    holds((_, policies, request, allowed) => {
      const layers = compile(policies)
      assert.equal(
        explain(layers, request).every(({ decision }) => decision === 'allow'),
        allowed,
      )
      assert.equal(refusingLayer(layers, request) === null, allowed)
      if (allowed) assert.ok(couldAllow(layers, request.action))
    }))
})

describe('laws of globs', () => {
  const ALPHABET = ['a', 'b', '/', '😀', '?', '*']
  const word = (next: (below: number) => number, letters: number) =>
    Array.from({ length: next(8) }, () => ALPHABET[next(letters)])

  it('match like the equivalent regular expression, and a wider glob matches no less', () => {
    let matched = 0
    for (let seed = 1; seed <= 20_000; seed++) {
      const next = random(seed)
      const pattern = word(next, ALPHABET.length)
      // Half of the values are made from the pattern, so that many match.
      const value =
        next(2) === 0
          ? word(next, 4).join('')
          : pattern
              .map(char => (char === '*' ? word(next, 4).join('') : char === '?' ? ALPHABET[next(4)] : char))
              .join('')
      const source = pattern.map(char => (char === '*' ? '.*' : char === '?' ? '.' : char)).join('')
      const expected = new RegExp(`^${source}$`, 'su').test(value)
      const message = `seed ${seed}: ${pattern.join('')} on ${value}`
      assert.equal(globMatches(compileGlob(pattern.join('')), value), expected, message)
      if (!expected) continue
      matched++
      if (pattern.length === 0) continue
      const wider = pattern.with(next(pattern.length), '*').join('')
      assert.ok(globMatches(compileGlob(wider), value), `${message}, as ${wider}`)
    }
    assert.ok(matched > 5000, `${matched} matched`)
  })
})
