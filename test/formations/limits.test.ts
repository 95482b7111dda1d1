import assert from 'node:assert/strict'
import { startApp } from '../support/app.ts'
import { longestTurn } from '../support/event-loop.ts'
import { forSuite } from '../support/suite.ts'

const store = (more: object = {}) => ({ type: 'memory_store', properties: { name: 'x' }, ...more })
const numbered = <T>(count: number, make: (n: number) => [string, T]) =>
  Object.fromEntries(Array.from({ length: count }, (_, n) => make(n)))
const nested = (depth: number, open: string, close: string, middle = '1') =>
  open.repeat(depth) + middle + close.repeat(depth)

/** Names that every object has. */
const INHERITED = ['constructor', 'toString', 'hasOwnProperty', 'valueOf', 'isPrototypeOf']

describe('bounds of templates', () => {
  const app = forSuite(() => startApp({ workers: ['orchestration'] }))
  const project = forSuite(() => app.project())

  const problems = async (template: unknown, parameters?: object): Promise<{ path: string; message: string }[]> => {
    const started = performance.now()
    const asked = project.key.post('/formations/validate', { template, parameters })
    const [{ status, body }, other] = await Promise.all([asked, project.key.get('/agents?limit=1')])
    assert.equal(other.status, 200)
    // Far above what a busy machine needs: what grows out of bounds takes minutes.
    assert.ok(performance.now() - started < 20_000)
    // What no body may hold is refused before it is read as a template.
    if (status === 400) return body.error.meta.problems
    assert.equal(body.valid, body.errors.length === 0)
    return body.errors
  }

  const bomb = () => {
    const lines = ['a0: &a0 [x,x,x,x,x,x,x,x,x]']
    for (let n = 1; n < 12; n++)
      lines.push(
        `a${n}: &a${n} [${Array(9)
          .fill(`*a${n - 1}`)
          .join(',')}]`,
      )
    return `${lines.join('\n')}\nresources: {}`
  }
  const REFUSED: Record<string, [template: unknown, path: RegExp]> = {
    'aliases that multiply': [bomb(), /^$/],
    'an alias of itself': ['resources: &r\n  A: { type: memory_store, properties: *r }', /^resources/],
    'aliases that make one megabyte of little': [
      `x: &x ${'y'.repeat(20_000)}\nresources:\n  A: { type: memory_store, properties: { name: [${Array(90).fill('*x').join(', ')}] } }`,
      /^$/,
    ],
    'brackets without end': [nested(100_000, '[', ''), /^$/],
    'deep flows': [`resources: ${nested(1000, '[', ']')}`, /^$/],
    'deep blocks': [`resources: \n${Array.from({ length: 200 }, (_, n) => `${' '.repeat(n + 1)}a:`).join('\n')}`, /^$/],
    'deep JSON': [`{"resources": ${nested(5000, '{"a":', '}')}}`, /./],
    'many tokens': [`resources: [${'a,'.repeat(200_000)}]`, /^$/],
    'more than one megabyte': [{ resources: { A: store({ metadata: 'x'.repeat(1_100_000) }) } }, /^$/],
    'expressions in expressions': [
      { resources: { A: store({ properties: JSON.parse(`{"name":${nested(50, '{"sub":', '}', '"x"')}}`) }) } },
      /^resources\.A\.properties\.name/,
    ],
    'a hundred thousand values': [
      { resources: { A: store({ properties: { name: 'x', tags: numbered(100_000, n => [`k${n}`, 1]) } }) } },
      /^$/,
    ],
    'one megabyte of expressions': [
      {
        resources: {
          A: store({
            properties: { name: 'x', tags: numbered(20_000, n => [`k${'k'.repeat(25)}${n}`, { ref: 'B' }]) },
          }),
        },
      },
      /^resources\.A\.properties\.tags\.k/,
    ],
    'a sub of a hundred thousand names': [
      { resources: { A: store({ properties: { name: { sub: '${B}'.repeat(100_000) } } }) } },
      /^resources\.A\.properties\.name$/,
    ],
    'a cycle of 500': [
      { resources: numbered(500, n => [`R${n}`, store({ depends_on: `R${(n + 1) % 500}` })]) },
      /^resources$/,
    ],
    'a hundred resources of which each refers to all others': [
      {
        resources: numbered(99, n => [
          `R${n}`,
          {
            type: 'tool',
            properties: {
              name: `t${n}`,
              type: 'client',
              preset_parameters: numbered(99, other => [`p${other}`, other === n ? 1 : { ref: `R${other}` }]),
            },
            ...(n < 2 ? { depends_on: `R${1 - n}` } : {}),
          },
        ]),
      },
      /^resources$/,
    ],
    'resources of which each depends on all before it': [
      {
        resources: numbered(300, n => [
          `R${n}`,
          {
            type: 'tool',
            properties: {
              name: `t${n}`,
              type: 'client',
              preset_parameters: { next: { ref: `R${(n + 1) % 300}` } },
            },
            depends_on: Array.from({ length: n }, (_, other) => `R${other}`),
          },
        ]),
      },
      /^resources$/,
    ],
    '501 resources': [{ resources: numbered(501, n => [`R${n}`, store()]) }, /^resources$/],
    '201 parameters': [{ resources: {}, parameters: numbered(201, n => [`P${n}`, {}]) }, /^parameters$/],
    'several documents': ['resources: {}\n---\nresources: {}', /^$/],
    'a key twice': ['resources: {}\nresources: {}', /^$/],
    'a list': [[1], /^$/],
    'a number': ['5', /^$/],
    nothing: ['', /^$/],
  }
  for (const [what, [template, path]] of Object.entries(REFUSED))
    it(`refuse ${what}, while others are served`, async () => {
      const found = await problems(template)
      assert.ok(found.length > 0)
      assert.match(found[0].path, path)
    })

  it('refuse __proto__ as a name of anything', async () => {
    const proto = (value: unknown) => JSON.parse(`{"__proto__": ${JSON.stringify(value)}}`)
    const A = store()
    const templates = [
      { resources: proto(A) },
      { resources: { A: store({ properties: proto('x') }) } },
      { resources: { A: store({ properties: { name: 'x', tags: proto('x') } }) } },
      { resources: { A }, parameters: proto({}) },
      { resources: { A }, outputs: proto({ ref: 'A' }) },
      { resources: { A }, moved: proto('A') },
      { resources: { A }, metadata: proto(1) },
    ]
    for (const template of templates)
      for (const written of [template, JSON.stringify(template)]) {
        const [found] = await problems(written)
        assert.match(found?.path ?? '', /__proto__$/, JSON.stringify(template))
      }
  })

  it('treat names that objects have by themselves as ordinary names', async () => {
    for (const name of INHERITED) {
      assert.equal(
        (await problems({ resources: { A: store({ properties: { name: { ref: name } } }) } })).length,
        1,
        name,
      )
      assert.equal((await problems({ resources: { A: store({ properties: { name: { param: name } } }) } })).length, 1)
      assert.equal((await problems({ resources: { A: { type: name } } })).length, 1)
      const [unknown] = await problems({ resources: { A: store({ properties: { name: 'x', [name]: 'x' } }) } })
      assert.equal(unknown?.path, `resources.A.properties.${name}`)
    }
    const template = {
      parameters: Object.fromEntries(INHERITED.map(name => [name, {}])),
      resources: Object.fromEntries(
        INHERITED.map(name => [`${name}_`, store({ properties: { name: { param: name }, tags: { [name]: 'x' } } })]),
      ),
      outputs: Object.fromEntries(INHERITED.map(name => [name, { ref_attr: `${name}_.name` }])),
      metadata: Object.fromEntries(INHERITED.map(name => [name, { ref: `${name}_` }])),
    }
    const missing = await project.key.post('/formations', { name: 'inherited', template })
    assert.deepEqual(missing.body.error?.meta?.missing_parameters, INHERITED)
    const parameters = Object.fromEntries(INHERITED.map(name => [name, `value of ${name}`]))
    const { body } = await project.key.post('/formations', { name: 'inherited', template, parameters })
    assert.equal(body.status, 'active', JSON.stringify(body.error ?? body))
    assert.deepEqual(body.outputs, parameters)
    const named = { resources: Object.fromEntries(INHERITED.map(name => [name, store()])) }
    const { body: other } = await project.key.post('/formations', { name: 'named', template: named })
    assert.deepEqual(
      other.resources.map(({ logical_id, status }: any) => [logical_id, status]),
      INHERITED.map(name => [name, 'created']),
    )
  })

  it('take 200 parameters', async () => {
    const parameters = numbered(200, n => [`P${n}`, { default: `${n}` }])
    const all = {
      sub: Object.keys(parameters)
        .map(name => `\${${name}}`)
        .join(''),
    }
    assert.deepEqual(await problems({ parameters, resources: {}, metadata: { all } }, {}), [])
  })

  it('name the first 100 problems, and refuse more than 10,000 expressions, without a long turn of the event loop', async () => {
    // Any caller may validate.
    const anyone = await app.user()
    const errors = async (metadata: unknown) => {
      let reply: any
      const template = { resources: {}, metadata }
      const longest = await longestTurn(async () => {
        reply = await anyone.post('/formations/validate', { template })
      })
      assert.ok(longest < 500, `${longest} ms`)
      assert.equal(reply.status, 200, JSON.stringify(reply.body).slice(0, 300))
      return reply.body.errors as { path: string; message: string }[]
    }
    const many = (path: string) => [{ path, message: 'exceeds the 10000 expressions of a template' }]
    assert.deepEqual(await errors({ sub: '${A}'.repeat(250_000) }), many('metadata'))
    assert.deepEqual(await errors(Array(20_000).fill({ ref: 'A' })), many('metadata[10000]'))
    assert.equal((await errors({ sub: '${A}'.repeat(9_999) })).length, 1)
    assert.equal((await errors(Array(10_000).fill({ ref: 'A' }))).length, 100)
  })
})
