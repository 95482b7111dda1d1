import assert from 'node:assert/strict'
import { createPool, type DatabasePool, sql } from 'slonik'
import { z } from 'zod'
import { couldAllow, decide, type Layer, projectVisible } from '#core/iam/decide.ts'
import { eventAllowed } from '#core/iam/event-gate.ts'
import { explain } from '#core/iam/explain.ts'
import { compileGlob, globMatches } from '#core/iam/glob.ts'
import type { PrincipalFacts } from '#core/iam/match.ts'
import { canonicalActions, canonicalType } from '#core/iam/names.ts'
import {
  type Catalogue,
  type CompiledDocument,
  checkPolicyDocument,
  compileDocument,
  type PolicyDocument,
  type PolicyStatement,
} from '#core/iam/policy.ts'
import { listPossible, listProjects, rowFilter } from '#core/iam/row-filter.ts'
import { processorMs } from '../support/event-loop.ts'
import { serverUrl } from '../support/postgres.ts'

const facts: PrincipalFacts = { principal_id: 'user_1', principal_type: 'user', credential_type: 'user' }

const catalogue: Catalogue = {
  actions: new Map(
    Object.entries({
      files: ['GetFile', 'CreateFile', 'UpdateFileMetadata', 'DeleteFile'],
      actors: ['ListActors', 'GetActor', 'CreateActor'],
      agents: ['ListAgents', 'GetAgent'],
      sessions: ['CreateSession', 'GetSession'],
      'project-keys': ['ListProjectKeys', 'GetProjectKey'],
      usage: ['GetAggregate', 'ListUsageEvents'],
      deciders: ['CreateDecision'],
    }).map(([module, actions]) => [module, new Set(actions)]),
  ),
  types: new Set(['file', 'actor', 'agent', 'session', 'project_key', 'policy', 'ai_provider', 'memory', 'secret']),
  eventNames: ['files.created', 'files.deleted', 'generations.completed', 'agents.generation.completed'],
  eventTypes: new Set(['eval_run']),
}

const allow = (action: string | string[], resource?: string | string[], condition?: PolicyStatement['condition']) =>
  statement('Allow', action, resource, condition)
const deny = (action: string | string[], resource?: string | string[], condition?: PolicyStatement['condition']) =>
  statement('Deny', action, resource, condition)

function statement(
  effect: 'Allow' | 'Deny',
  action: string | string[],
  resource?: string | string[],
  condition?: PolicyStatement['condition'],
): PolicyStatement {
  return {
    effect,
    action: [action].flat(),
    ...(resource && { resource: [resource].flat() }),
    ...(condition && { condition }),
  }
}

const compile = (...statements: PolicyStatement[]): CompiledDocument => compileDocument({ statement: statements })
const layer = (...statements: PolicyStatement[]): Layer => ({ kind: 'user', documents: [compile(...statements)] })

/** Decision on one resource by its names; the type is the type of the first. */
function can(layers: Layer[], action: string, names: string | string[], tags?: Record<string, string>): boolean {
  const list = [names].flat()
  return decide(layers, { action, names: list, type: list[0]?.split(':')[2] ?? '', resourceTags: tags, facts })
}

function problems(document: unknown): string[] {
  return checkPolicyDocument(document, catalogue).map(({ code, path }) => `${code} ${path}`)
}

describe('writing a policy document', () => {
  it('accepts every documented form', () => {
    const document = {
      statement: [
        allow(['*']),
        allow(['files:*', 'files:GetFile', 'files:Get*', 'files.created', 'files.*', 'agents.generation.completed']),
        deny('files:GetFile', [
          '*',
          'srn:*:*:*',
          'srn:proj_1:file:file_1',
          'srn:proj_1:file:/pub/*?:x',
          'srn:P:eval_run:*',
        ]),
        allow('*', 'srn:*:*:*', {
          StringEquals: { 'svc:ResourceTag/cost_center': ['a', 'b'], 'acme:ResourceTag/a/b': 'x' },
          StringNotLike: { 'svc:RequestTag/team': 'x*' },
          StringNotEquals: { 'svc:PrincipalType': 'user', 'svc:PrincipalId': 'u', 'svc:CredentialType': 'run' },
          StringLike: { 'svc:ResourceType': 'fi?e' },
        }),
      ],
    }
    const before = JSON.stringify(document)
    assert.deepEqual(problems(document), [])
    assert.equal(JSON.stringify(document), before)
  })

  it('accepts aliases of actions and spellings of types', () => {
    const actions = ['agents:CreateSession', 'api-keys:GetApiKey', 'api-keys:ListApiKeys', 'usage:GetUsage']
    actions.push('usage:ListUsageMeters', 'deciders:EvaluateDecider')
    const types = ['files', 'api-key', 'api_keys', 'project-keys', 'policies', 'ai-providers', 'memories', 'file']
    const resources = types.map(type => `srn:*:${type}:*`)
    assert.deepEqual(problems({ statement: [allow(actions, resources)] }), [])
  })

  const refused: [string, unknown, string][] = [
    ['a document that is no object', 'x', 'INVALID_TYPE document'],
    ['an array', [], 'INVALID_TYPE document'],
    ['a missing statement list', {}, 'INVALID_TYPE document.statement'],
    ['an empty statement list', { statement: [] }, 'TOO_SMALL document.statement'],
    ['a statement that is no object', { statement: [null] }, 'INVALID_TYPE document.statement[0]'],
    ['an unknown key', { statement: [allow('*')], version: 1 }, 'UNKNOWN_PROPERTY document.version'],
    [
      'an unknown key of a statement',
      { statement: [{ ...allow('*'), notAction: [] }] },
      'UNKNOWN_PROPERTY document.statement[0].notAction',
    ],
    [
      'effect in lower case',
      { statement: [{ ...allow('*'), effect: 'allow' }] },
      'INVALID_EFFECT document.statement[0].effect',
    ],
    ['no effect', { statement: [{ action: ['*'] }] }, 'INVALID_EFFECT document.statement[0].effect'],
    ['no action', { statement: [{ effect: 'Allow' }] }, 'INVALID_TYPE document.statement[0].action'],
    [
      'an action that is a string',
      { statement: [{ effect: 'Allow', action: '*' }] },
      'INVALID_TYPE document.statement[0].action',
    ],
    ['an action list without items', { statement: [allow([])] }, 'TOO_SMALL document.statement[0].action'],
    ['more than 100 actions', { statement: [allow(Array(101).fill('*'))] }, 'TOO_LARGE document.statement[0].action'],
    ['more than 100 statements', { statement: Array(101).fill(allow('*')) }, 'TOO_LARGE document.statement'],
    ['a document over 64 KiB', { statement: [allow('x'.repeat(70_000))] }, 'TOO_LARGE document'],
    [
      'an empty resource list',
      { statement: [{ ...allow('*'), resource: [] }] },
      'TOO_SMALL document.statement[0].resource',
    ],
    [
      'a null resource',
      { statement: [{ ...allow('*'), resource: null }] },
      'INVALID_TYPE document.statement[0].resource',
    ],
  ]
  for (const [what, document, expected] of refused)
    it(`refuses ${what}`, () => assert.deepEqual(problems(document), [expected]))

  const actions = [
    'files:GetFiles',
    'filez:*',
    'files:Zap*',
    'files',
    '',
    'files:',
    ':GetFile',
    'files:*File',
    'files:Ge*e*',
    '**',
  ]
  actions.push(
    'files.made',
    'filez.*',
    'files:get*',
    'files:GetFile:x',
    'api-keys:*',
    'api-keys:List*',
    'agents:CreateSessio*',
  )
  actions.push(
    'agents:CreateActor',
    'oauth:*',
    'files.*.created',
    '*.created',
    'constructor:toString',
    'orders.shipped',
  )
  for (const action of actions)
    it(`refuses the action ${JSON.stringify(action)}`, () =>
      assert.deepEqual(problems({ statement: [allow(['*', action])] }), [
        'UNKNOWN_ACTION document.statement[0].action[1]',
      ]))

  const resources = [
    '',
    'x',
    'srn:P:file',
    'srn:P:filez:*',
    'srn::file:*',
    'srn:P::*',
    'srn:P:file:',
    'srn:P:file:file_*',
  ]
  resources.push('srn:P*:file:*', 'srn:P:fi*:*', 'arn:P:file:*', 'srn:P:file:fil?', 'SRN:P:file:*', 'srn:P:File:*')
  for (const resource of resources)
    it(`refuses the resource ${JSON.stringify(resource)}`, () =>
      assert.deepEqual(problems({ statement: [{ ...allow('*'), resource: [resource] }] }), [
        'INVALID_RESOURCE document.statement[0].resource[0]',
      ]))

  const conditions: [unknown, string][] = [
    [{ StringEqual: { 'svc:PrincipalId': 'x' } }, '.StringEqual'],
    [{ StringEquals: { 'svc:PrincipalID': 'x' } }, '.StringEquals.svc:PrincipalID'],
    [{ StringEquals: { PrincipalId: 'x' } }, '.StringEquals.PrincipalId'],
    [{ StringEquals: { 's:PrincipalId': 'x' } }, '.StringEquals.s:PrincipalId'],
    [{ StringEquals: { 'SVC:PrincipalId': 'x' } }, '.StringEquals.SVC:PrincipalId'],
    [{ StringEquals: { [`${'a'.repeat(17)}:PrincipalId`]: 'x' } }, `.StringEquals.${'a'.repeat(17)}:PrincipalId`],
    [{ StringEquals: { 'svc:ResourceTag/': 'x' } }, '.StringEquals.svc:ResourceTag/'],
    [{ StringEquals: { 'svc:PrincipalId': 1 } }, '.StringEquals.svc:PrincipalId'],
    [{ StringEquals: { 'svc:PrincipalId': [] } }, '.StringEquals.svc:PrincipalId'],
    [{ StringEquals: { 'svc:PrincipalId': ['a', null] } }, '.StringEquals.svc:PrincipalId'],
    [{ StringEquals: { 'svc:PrincipalId': Array(51).fill('a') } }, '.StringEquals.svc:PrincipalId'],
    [{ StringEquals: 'x' }, '.StringEquals'],
    ['x', ''],
    [JSON.parse('{"__proto__": {"svc:PrincipalId": "x"}}'), '.__proto__'],
  ]
  for (const [condition, path] of conditions)
    it(`refuses the condition ${JSON.stringify(condition).slice(0, 60)}`, () =>
      assert.deepEqual(problems({ statement: [{ ...allow('*'), condition }] }), [
        `INVALID_CONDITION document.statement[0].condition${path}`,
      ]))

  it('names the field it was given as and answers at most 100 problems', () => {
    const found = checkPolicyDocument({ statement: Array(90).fill(allow(['x', 'y'])) }, catalogue, 'boundary_policy')
    assert.equal(found.length, 100)
    assert.equal(found[0].path, 'boundary_policy.statement[0].action[0]')
  })

  it('quotes a long name up to a whole character', () => {
    const name = `${'a'.repeat(98)}\u{1f600}b`
    const [{ message }] = checkPolicyDocument({ statement: [allow(name)] }, catalogue)
    assert.equal(message, `"${'a'.repeat(98)}... is not an action of this deployment`)
  })

  it('finds every mistake of a statement together', () => {
    const document = {
      statement: [allow('*'), { effect: 'deny', action: ['x'], resource: ['y'], condition: { Z: {} } }],
    }
    assert.deepEqual(problems(document), [
      'INVALID_EFFECT document.statement[1].effect',
      'UNKNOWN_ACTION document.statement[1].action[0]',
      'INVALID_RESOURCE document.statement[1].resource[0]',
      'INVALID_CONDITION document.statement[1].condition.Z',
    ])
  })
})

describe('spellings', () => {
  it('folds types', () => {
    const spellings = {
      files: 'file',
      'api-key': 'project_key',
      api_keys: 'project_key',
      'project-keys': 'project_key',
    }
    for (const [spelling, type] of Object.entries({
      ...spellings,
      policies: 'policy',
      'ai-providers': 'ai_provider',
      memories: 'memory',
      activities: 'activity',
      activity: 'activity',
      cases: 'case',
      audit_entries: 'audit_entry',
      usage: 'usage',
      knowledge: 'knowledge',
    }))
      assert.equal(canonicalType(spelling), type)
  })

  it('folds actions, and agents:<Name> only where sessions alone has the name', () => {
    assert.deepEqual(canonicalActions('agents:CreateSession', catalogue), ['sessions:CreateSession'])
    assert.deepEqual(canonicalActions('agents:GetAgent', catalogue), ['agents:GetAgent'])
    assert.deepEqual(canonicalActions('agents:Nothing', catalogue), ['agents:Nothing'])
    assert.deepEqual(canonicalActions('api-keys:RotateApiKey'), ['project-keys:RotateProjectKey'])
    assert.deepEqual(canonicalActions('usage:GetUsage'), ['usage:GetAggregate'])
  })

  it('an alias grants and denies the action it stands for', () => {
    const granted = [layer(allow(['agents:CreateSession', 'api-keys:ListApiKeys']))]
    assert.equal(can(granted, 'sessions:CreateSession', 'srn:P:session:*'), true)
    assert.equal(can(granted, 'sessions:GetSession', 'srn:P:session:*'), false)
    assert.equal(can(granted, 'project-keys:ListProjectKeys', 'srn:P:project_key:*'), true)
    assert.equal(
      can([layer(allow('*'), deny('agents:CreateSession'))], 'sessions:CreateSession', 'srn:P:session:*'),
      false,
    )
  })

  it('a wildcard never reaches into another module', () => {
    const granted = [layer(allow(['agents:*', 'agents:Create*', 'api-keys:*', 'usage:GetU*']))]
    assert.equal(can(granted, 'sessions:CreateSession', 'srn:P:session:*'), false)
    assert.equal(can(granted, 'project-keys:ListProjectKeys', 'srn:P:project_key:*'), false)
    assert.equal(can(granted, 'usage:GetAggregate', 'srn:P:usage:*'), false)
  })

  it('spellings of types match in stored documents', () => {
    assert.equal(can([layer(allow('*', 'srn:P:api-keys:key_1'))], 'x:Y', 'srn:P:project_key:key_1'), true)
  })
})

describe('globs', () => {
  const cases: [string, string, boolean][] = [
    ['/pub/*', '/pub/a/b', true],
    ['/pub/*', '/pub/', true],
    ['/pub/*', '/private/x', false],
    ['/pub/?', '/pub/ab', false],
    ['/a**b*c', '/axxbxxc', true],
    ['*', '', true],
    ['?', '', false],
    ['', '', true],
    ['a?c', 'a😀c', true],
    ['a??c', 'a😀c', false],
    ['*??', '😀', false],
    ['*?😀', 'x😀', true],
    ['a.c', 'abc', false],
    ['*aab', 'aaaab', true],
    ['%_', 'ab', false],
  ]
  for (const [pattern, value, expected] of cases)
    it(`${JSON.stringify(pattern)} ${expected ? 'matches' : 'does not match'} ${JSON.stringify(value)}`, () =>
      assert.equal(globMatches(compileGlob(pattern), value), expected))

  it('answers a hostile pattern immediately', async () => {
    const match = () => assert.equal(globMatches(compileGlob(`/${'*a'.repeat(500)}b`), `/${'a'.repeat(1000)}`), false)
    assert.ok((await processorMs(match)) < 1000)
  })
})

describe('a decision', () => {
  it('zero layers allow everything, an empty layer nothing', () => {
    assert.equal(can([], 'x:Y', 'srn:P:file:f'), true)
    assert.equal(can([{ kind: 'user', documents: [] }], 'x:Y', 'srn:P:file:f'), false)
    assert.equal(couldAllow([], 'x:Y') && projectVisible([], 'P'), true)
    assert.equal(couldAllow([{ kind: 'user', documents: [] }], 'x:Y'), false)
  })

  it('Deny wins whatever the order of statements and documents', () => {
    const statements = [allow('files:*', 'srn:P:*:*'), deny('files:DeleteFile', 'srn:P:*:*')]
    for (const documents of [
      [compile(...statements)],
      [compile(...statements.reverse())],
      statements.map(s => compile(s)),
    ]) {
      const layers: Layer[] = [{ kind: 'user', documents }]
      assert.equal(can(layers, 'files:GetFile', 'srn:P:file:f'), true)
      assert.equal(can(layers, 'files:DeleteFile', 'srn:P:file:f'), false)
    }
  })

  it('needs an Allow of every layer', () => {
    const wide = layer(allow('*'))
    const narrow: Layer = { kind: 'key', documents: [compile(allow('files:Get*', 'srn:P:file:*'))] }
    assert.equal(can([wide, narrow], 'files:GetFile', 'srn:P:file:f'), true)
    assert.equal(can([narrow, wide], 'files:DeleteFile', 'srn:P:file:f'), false)
    assert.equal(couldAllow([wide, narrow], 'files:DeleteFile'), false)
    assert.equal(can([narrow, wide], 'files:GetFile', 'srn:Q:file:f'), false)
  })

  it('matches names segment by segment, ids and paths with colons included', () => {
    const granted = (resource: string, name: string) => can([layer(allow('*', resource))], 'files:GetFile', name)
    assert.equal(granted('srn:P:file:a', 'srn:P:file:a'), true)
    assert.equal(granted('srn:P:file:a', 'srn:P:file:b'), false)
    assert.equal(granted('srn:P:file:a:b', 'srn:P:file:a:b'), true)
    assert.equal(granted('srn:P:file:/x:*', 'srn:P:file:/x:y/z'), true)
    assert.equal(granted('srn:P:file:*', 'srn:Q:file:a'), false)
    assert.equal(granted('srn:P:file:*', 'srn:P:secret:a'), false)
    assert.equal(granted('srn:*:policy:*', 'srn:*:policy:pol_1'), true)
    assert.equal(granted('srn:P:policy:*', 'srn:*:policy:pol_1'), false)
    assert.equal(granted('srn:P:file:/*', 'srn:P:file:file_1'), false)
    assert.equal(granted('*', 'not a name'), false)
    assert.equal(can([layer(allow('*'))], 'files:GetFile', []), false)
  })

  it('a create is matched by the literal * or a path pattern, not by a pattern of one id', () => {
    const names = ['srn:P:file:*', 'srn:P:file:/pub/x']
    assert.equal(can([layer(allow('*', 'srn:P:file:file_1'))], 'files:CreateFile', names), false)
    assert.equal(can([layer(allow('*', 'srn:P:file:*'))], 'files:CreateFile', names), true)
    assert.equal(can([layer(allow('*', 'srn:P:file:/pub/*'))], 'files:CreateFile', names), true)
    assert.equal(can([layer(allow('*'), deny('*', 'srn:P:file:/pub/*'))], 'files:CreateFile', names), false)
  })

  it('compares tags by exact key and reads missing ones as null', () => {
    const tagged = (condition: PolicyStatement['condition']) => [layer(allow('*', '*', condition))]
    const name = 'srn:P:actor:a'
    const equals = tagged({ StringEquals: { 'svc:ResourceTag/cost_center': 'x' } })
    assert.equal(can(equals, 'a:B', name, { cost_center: 'x' }), true)
    assert.equal(can(equals, 'a:B', name, { costCenter: 'x' }), false)
    assert.equal(can(equals, 'a:B', name), false)
    assert.equal(can(tagged({ StringNotEquals: { 'svc:ResourceTag/a': ['x', 'y'] } }), 'a:B', name), true)
    assert.equal(can(tagged({ StringNotEquals: { 'svc:ResourceTag/a': ['x', 'y'] } }), 'a:B', name, { a: 'y' }), false)
    assert.equal(can(tagged({ StringLike: { 'svc:ResourceTag/a': 'b?*' } }), 'a:B', name, { a: 'bc' }), true)
    assert.equal(can(tagged({ StringNotLike: { 'svc:ResourceTag/a': 'b*' } }), 'a:B', name, { a: 'bc' }), false)
    assert.equal(can(tagged({ StringNotLike: { 'svc:ResourceTag/a': 'b*' } }), 'a:B', name), true)
    assert.equal(can(tagged({ StringEquals: { 'svc:ResourceTag/constructor': 'x' } }), 'a:B', name, {}), false)
    assert.equal(can(tagged({ StringEquals: { 'svc:ResourceTag/a/b': 'x' } }), 'a:B', name, { 'a/b': 'x' }), true)
  })

  it('needs every tag set it is given', () => {
    const layers = [layer(allow('*', '*', { StringEquals: { 'svc:ResourceTag/visibility': 'internal' } }))]
    const request = { action: 'actors:UpdateActor', names: ['srn:P:actor:a'], type: 'actor', facts }
    const internal = { visibility: 'internal' }
    assert.equal(decide(layers, { ...request, resourceTags: [internal, internal] }), true)
    assert.equal(decide(layers, { ...request, resourceTags: [internal, {}] }), false)
    assert.equal(decide(layers, { ...request, resourceTags: [null, internal] }), false)
    assert.equal(decide(layers, { ...request, resourceTags: [] }), false)
    assert.equal(explain(layers, { ...request, resourceTags: [internal, {}] })[0].decision, 'none')
  })

  it('reads request tags, type and principal', () => {
    const request = { action: 'a:B', names: ['srn:P:actor:a'], type: 'actor', facts, requestTags: { team: 'red' } }
    const when = (key: string, value: string) =>
      decide([layer(allow('*', '*', { StringEquals: { [`any:${key}`]: value } }))], request)
    assert.equal(when('RequestTag/team', 'red'), true)
    assert.equal(when('ResourceTag/team', 'red'), false)
    assert.equal(when('ResourceType', 'actor'), true)
    assert.equal(when('PrincipalId', 'user_1'), true)
    assert.equal(when('PrincipalType', 'api_key'), false)
    assert.equal(when('CredentialType', 'user'), true)
  })

  it('all keys of all operators must hold', () => {
    const condition = {
      StringEquals: { 'svc:ResourceTag/a': '1', 'svc:ResourceTag/b': '2' },
      StringLike: { 'svc:ResourceTag/c': '*' },
    }
    const layers = [layer(allow('*', '*', condition))]
    assert.equal(can(layers, 'a:B', 'srn:P:actor:a', { a: '1', b: '2', c: '' }), true)
    assert.equal(can(layers, 'a:B', 'srn:P:actor:a', { a: '1', b: '2' }), false)
  })
})

describe('stored documents that would not be accepted today', () => {
  const name = 'srn:P:file:f'

  it('an unparsable document denies its layer', () => {
    const broken: unknown[] = [null, 'x', {}, { statement: 1 }, { statement: [{ effect: 'permit', action: ['*'] }] }]
    broken.push({ statement: [{ effect: 'Allow', action: ['*'], notResource: ['*'] }] })
    broken.push(
      { statement: [{ effect: 'Allow', action: ['fi*les'] }] },
      { statement: [{ ...allow('*'), resource: ['srn:P'] }] },
    )
    for (const document of broken) {
      const documents = [compile(allow('*')), compileDocument(document)]
      assert.equal(documents[1].valid, false)
      const layers: Layer[] = [{ kind: 'user', documents }]
      assert.equal(can(layers, 'files:GetFile', name), false)
      assert.equal(couldAllow(layers, 'files:GetFile') || projectVisible(layers, 'P'), false)
      const list = { action: 'files:GetFile', type: 'file', facts }
      assert.equal(listPossible(layers, { ...list, projectId: 'P' }), false)
      assert.equal(rowFilter(layers, list, { project: sql.fragment`p`, id: sql.fragment`i` }), false)
      assert.deepEqual(explain(layers, { ...list, names: [name] }), [
        { kind: 'user', decision: 'deny', document_index: 1, statement_index: null },
      ])
    }
  })

  it('an unknown operator or key makes an Allow not match and a Deny match', () => {
    const unknown: PolicyStatement['condition'][] = [
      { NumericEquals: { 'svc:PrincipalId': 'user_1' } },
      { StringEquals: { 'svc:PrincipalId': 'other', 'svc:Weekday': 'x' } },
    ]
    for (const condition of unknown) {
      assert.equal(can([layer(allow('*', '*', condition))], 'files:GetFile', name), false)
      assert.equal(couldAllow([layer(allow('*', '*', condition))], 'files:GetFile'), false)
      assert.equal(can([layer(allow('*'), deny('*', '*', condition))], 'files:GetFile', name), false)
    }
  })

  it('actions and types that no longer exist never match', () => {
    const layers = [layer(allow(['gone:Action', 'gone:*', 'files:GetFile'], ['srn:P:gone:*', 'srn:P:file:*']))]
    assert.equal(can(layers, 'files:GetFile', name), true)
  })

  it('a document may be longer than a new one may be', () => {
    const actions = Array.from({ length: 300 }, (_, i) => `m:Action${i}`)
    assert.equal(can([layer(allow(actions))], 'm:Action299', name), true)
  })
})

describe('questions about more than one resource', () => {
  it('couldAllow requires the action only, and respects a Deny of everything', () => {
    assert.equal(couldAllow([layer(allow('files:GetFile', 'srn:P:file:f'))], 'files:GetFile'), true)
    assert.equal(couldAllow([layer(allow('files:*'))], 'secrets:GetSecret'), false)
    assert.equal(couldAllow([layer(allow('*'), deny('files:*'))], 'files:GetFile'), false)
    assert.equal(couldAllow([layer(allow('*'), deny('files:*', 'srn:P:*:*'))], 'files:GetFile'), true)
  })

  it('a project is visible when every layer names it somewhere', () => {
    const p = layer(allow('secrets:GetSecret', 'srn:P:secret:a'))
    assert.equal(projectVisible([p], 'P'), true)
    assert.equal(projectVisible([p], 'Q'), false)
    assert.equal(projectVisible([p, layer(allow('*', 'srn:Q:*:*'))], 'P'), false)
    assert.equal(projectVisible([layer(deny('*', 'srn:P:*:*'))], 'P'), false)
    assert.equal(projectVisible([layer(allow('x:*', 'srn:*:file:*'))], 'P'), true)
  })

  it('a list in a named project is refused without an Allow there or under a Deny that covers it', () => {
    const list = { action: 'actors:ListActors', type: 'actor', projectId: 'P', facts }
    const possible = (...statements: PolicyStatement[]) => listPossible([layer(...statements)], list)
    assert.equal(possible(allow('*', 'srn:P:actor:actor_1')), true)
    assert.equal(possible(allow('*', 'srn:P:file:*')), false)
    assert.equal(possible(allow('*', 'srn:Q:*:*')), false)
    assert.equal(possible(allow('*'), deny('*', 'srn:P:actor:*')), false)
    assert.equal(possible(allow('*'), deny('*', 'srn:P:actor:actor_1')), true)
    assert.equal(possible(allow('*'), deny('*', '*', { StringEquals: { 'svc:ResourceTag/a': 'x' } })), true)
    assert.equal(possible(allow('*'), deny('*', '*', { StringEquals: { 'svc:PrincipalType': 'user' } })), false)
    assert.equal(possible(allow('*', '*', { StringEquals: { 'svc:PrincipalType': 'api_key' } })), false)
    assert.equal(possible(allow('actors:GetActor')), false)
  })

  it('the projects a list can have rows in', () => {
    const list = { action: 'actors:ListActors', type: 'actor', facts }
    const p = layer(allow('*', ['srn:P:*:*', 'srn:Q:actor:a', 'srn:R:file:*']))
    assert.equal(listProjects([], list), 'all')
    assert.deepEqual(listProjects([p], list), ['P', 'Q'])
    assert.deepEqual(listProjects([p, layer(allow('*', 'srn:Q:*:*'))], list), ['Q'])
    assert.deepEqual(listProjects([p, layer(allow('*'), deny('*', 'srn:P:*:*'))], list), ['Q'])
    assert.deepEqual(listProjects([p, layer(allow('*'), deny('*', 'srn:*:actor:*'))], list), [])
    assert.equal(listProjects([layer(allow('*'), deny('*', 'srn:P:*:*'))], list), 'all')
    assert.deepEqual(listProjects([layer(allow('files:*'))], list), [])
  })

  it('explains each layer by the statement that decided', () => {
    const layers: Layer[] = [
      layer(allow('files:*'), allow('*')),
      { kind: 'key', documents: [compile(allow('*')), compile(allow('x:*'), deny('files:GetFile'))] },
      { kind: 'grant', documents: [compile(allow('x:*'))] },
    ]
    assert.deepEqual(explain(layers, { action: 'files:GetFile', names: ['srn:P:files:f'], type: 'file', facts }), [
      { kind: 'user', decision: 'allow', document_index: 0, statement_index: 0 },
      { kind: 'key', decision: 'deny', document_index: 1, statement_index: 1 },
      { kind: 'grant', decision: 'none', document_index: null, statement_index: null },
    ])
  })
})

describe('the event gate', () => {
  const event = { name: 'files.created', srn: 'srn:P:file:file_1', type: 'file', tags: { team: 'red' } }
  const gate = (...statements: PolicyStatement[]) => eventAllowed(compile(...statements), event)

  it('needs an explicit Allow of the event', () => {
    assert.equal(gate(allow('files.created')), true)
    assert.equal(gate(allow('files.*')), true)
    assert.equal(gate(allow('*')), true)
    assert.equal(gate(allow('files:*')), false)
    assert.equal(gate(allow('files.deleted')), false)
    assert.equal(gate(allow('*'), deny('files.*')), false)
    assert.equal(gate(allow('*'), deny('files:*')), true)
  })

  it('compares the resource and its tags', () => {
    assert.equal(gate(allow('*', 'srn:P:files:*')), true)
    assert.equal(gate(allow('*', 'srn:Q:*:*')), false)
    assert.equal(gate(allow('*', '*', { StringEquals: { 'svc:ResourceTag/team': 'red' } })), true)
    assert.equal(gate(allow('*', '*', { StringEquals: { 'svc:ResourceTag/team': 'blue' } })), false)
    assert.equal(gate(allow('*', '*', { StringEquals: { 'svc:ResourceType': 'file' } })), true)
    assert.equal(gate(allow('*', '*', { StringEquals: { 'svc:PrincipalType': 'user' } })), false)
    assert.equal(gate(allow('*', '*', { StringNotEquals: { 'svc:PrincipalType': 'user' } })), true)
  })

  it('matches the event under its aliases too', () => {
    const aliased = { ...event, name: 'generations.completed', aliases: ['agents.generation.completed'] }
    assert.equal(eventAllowed(compile(allow('agents.generation.completed')), aliased), true)
    assert.equal(eventAllowed(compile(allow('*'), deny('agents.*')), aliased), false)
  })

  it('event patterns never match an action, a broken document never an event', () => {
    assert.equal(can([layer(allow(['files.*', 'files.created']))], 'files:GetFile', 'srn:P:file:f'), false)
    assert.equal(eventAllowed(compileDocument({}), event), false)
  })
})

describe('the row filter of a list', function () {
  this.timeout(60_000)
  let pool: DatabasePool

  type Row = {
    n: number
    project_id: string | null
    id: string
    path: string | null
    tags: Record<string, string> | null
    parent: string
  }
  const rows: Row[] = []
  const columns = {
    project: sql.fragment`t.project_id`,
    id: sql.fragment`t.id`,
    path: sql.fragment`t.path`,
    tags: sql.fragment`t.tags`,
    parent: sql.fragment`t.parent`,
  }
  const paths = ['/a', '/a/b', '/a/b/c', '/A', '/50%', '/x_y', '/x1y', '/back\\slash', '/😀', "/o'brien", '/a*', '/a:b']
  const values = ['red', 'blue', '', 'r%d', 'r_d', 'RED', 'r\\d', '😀', "'; drop table t; --"]

  before(async () => {
    pool = await createPool(await serverUrl(), { maxPoolSize: 1 })
    let n = 0
    for (const project_id of ['P', 'Q', 'R', null])
      for (const path of [null, ...paths])
        for (const tags of tagSets(n))
          rows.push({ n, project_id, id: `file_${n % 20}`, path, tags, parent: `orch_${n++ % 5}` })
  })

  function tagSets(n: number): Row['tags'][] {
    const team = values[n % values.length]
    return [null, {}, { team }, { team, 'a/b': values[n % 5] }, { Team: 'red' }]
  }

  after(() => pool?.end())

  /** Deterministic numbers in [0, 1): a failing seed fails again. */
  function random(seed: number): () => number {
    return () => {
      seed = (seed + 0x6d2b79f5) | 0
      let t = Math.imul(seed ^ (seed >>> 15), 1 | seed)
      t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
      return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32
    }
  }

  function randomDocument(next: () => number): PolicyDocument {
    const pick = <T>(items: readonly T[]): T => items[Math.floor(next() * items.length)]
    const some = <T>(make: () => T, most: number): T[] => Array.from({ length: 1 + Math.floor(next() * most) }, make)
    const path = () => {
      const chosen = pick(paths)
      return pick([
        chosen,
        `${chosen}*`,
        `${[...chosen].slice(0, -1).join('')}?`,
        '/*',
        '/?',
        `/*${[...chosen].at(-1)}`,
        '/*/*',
      ])
    }
    const resource = () =>
      next() < 0.1
        ? '*'
        : `srn:${pick(['*', 'P', 'P', 'Q'])}:${pick(['*', 'file', 'files', 'orchestration', 'secret'])}:${pick([
            '*',
            `file_${Math.floor(next() * 20)}`,
            `orch_${Math.floor(next() * 5)}`,
            path(),
            path(),
          ])}`
    const value = () => pick([...values, 'r*', '?ed', '*', '%', '*d', '?'])
    const condition = () => ({
      [pick(['StringEquals', 'StringNotEquals', 'StringLike', 'StringNotLike'])]: {
        [pick(['svc:ResourceTag/team', 'svc:ResourceTag/team', 'svc:ResourceTag/a/b', 'x:no'])]: some(value, 3),
      },
    })
    const constant = () => ({
      [pick(['StringEquals', 'StringNotLike'])]: {
        [pick(['svc:PrincipalId', 'svc:ResourceType', 'svc:RequestTag/team'])]: pick(['user_1', 'file', 'red']),
      },
    })
    return {
      statement: some(
        () => ({
          effect: next() < 0.65 ? 'Allow' : 'Deny',
          action: [pick(['*', 'files:*', 'files:GetFile', 'files:Get*', 'secrets:*'])],
          ...(next() < 0.9 && { resource: some(resource, 4) }),
          ...(next() < 0.5 && { condition: { ...condition(), ...(next() < 0.3 && constant()) } }),
        }),
        4,
      ),
    }
  }

  it('permits exactly the rows that are allowed one by one', async () => {
    const request = { action: 'files:GetFile', type: 'file', parentType: 'orchestration', facts }
    const permitted = z.object({ n: z.number() })
    let fragments = 0
    await pool.connect(async connection => {
      await connection.query(sql.unsafe`
        create temporary table t (n int, project_id text, id text, path text, tags jsonb, parent text)`)
      await connection.query(sql.unsafe`
        insert into t
        select * from jsonb_to_recordset(${JSON.stringify(rows)}::jsonb)
          as r(n int, project_id text, id text, path text, tags jsonb, parent text)`)
      for (let seed = 1; seed <= 600; seed++) {
        const next = random(seed)
        const layers = Array.from(
          { length: 1 + Math.floor(next() * 2) },
          (): Layer => ({
            kind: 'user',
            documents: Array.from({ length: 1 + Math.floor(next() * 2) }, () => compileDocument(randomDocument(next))),
          }),
        )
        const expected = rows.filter(row => {
          const project = row.project_id ?? '*'
          const names = [`srn:${project}:file:${row.id}`, `srn:${project}:orchestration:${row.parent}`]
          if (row.path) names.push(`srn:${project}:file:${row.path}`)
          return decide(layers, { ...request, names, resourceTags: row.tags })
        })
        for (const projectId of [undefined, 'P']) {
          const filter = rowFilter(layers, { ...request, projectId }, columns)
          if (typeof filter !== 'boolean') fragments++
          const where = typeof filter === 'boolean' ? sql.fragment`${filter}` : filter
          const scope = projectId ? sql.fragment`t.project_id = ${projectId}` : sql.fragment`true`
          const found = await connection.any(
            sql.type(permitted)`select n from t where ${scope} and ${where} order by n`,
          )
          const wanted = expected.filter(row => !projectId || row.project_id === projectId)
          assert.deepEqual(
            found.map(row => row.n),
            wanted.map(row => row.n),
            `seed ${seed}`,
          )
          if (projectId && wanted.length > 0) assert.ok(listPossible(layers, { ...request, projectId }), `seed ${seed}`)
        }
        const projects = listProjects(layers, request)
        if (projects !== 'all')
          for (const row of expected) assert.ok(projects.includes(row.project_id!), `seed ${seed}`)
      }
    })
    assert.ok(fragments > 400, `only ${fragments} of the filters were fragments`)
  })

  it('is a constant where rows make no difference', () => {
    const request = { action: 'files:GetFile', type: 'file', facts }
    const filter = (projectId: string | undefined, ...statements: PolicyStatement[]) =>
      rowFilter([layer(...statements)], { ...request, projectId }, columns)
    assert.equal(rowFilter([], request, columns), true)
    assert.equal(filter(undefined, allow('*')), true)
    assert.equal(filter(undefined, allow('secrets:*')), false)
    assert.equal(filter('P', allow('*', 'srn:P:*:*')), true)
    assert.equal(filter('Q', allow('*', 'srn:P:*:*')), false)
    assert.equal(filter(undefined, allow('*'), deny('*')), false)
    assert.equal(filter('P', allow('*'), deny('*', 'srn:Q:*:*')), true)
    assert.equal(filter(undefined, allow('*', '*', { StringEquals: { 'svc:PrincipalId': 'user_2' } })), false)
  })

  it('carries values as parameters only, many ids as one', () => {
    const ids = Array.from({ length: 100 }, (_, i) => `srn:P:file:file_'${i}`)
    const filter = rowFilter([layer(allow('*', ids))], { action: 'files:GetFile', type: 'file', facts }, columns)
    assert.ok(typeof filter !== 'boolean')
    assert.ok(!filter.sql.includes("'"))
    assert.equal(filter.values.length, 2)
  })

  it('of a type without paths or tags, patterns on them match nothing', () => {
    const bare = { project: columns.project, id: columns.id }
    const request = { action: 'files:GetFile', type: 'file', facts }
    const tagged = { StringEquals: { 'svc:ResourceTag/a': 'x' } }
    assert.equal(rowFilter([layer(allow('*', 'srn:*:file:/a*'))], request, bare), false)
    assert.equal(rowFilter([layer(allow('*', '*', tagged))], request, bare), false)
    assert.equal(
      rowFilter([layer(allow('*', '*', { StringNotEquals: { 'svc:ResourceTag/a': 'x' } }))], request, bare),
      true,
    )
  })
})
