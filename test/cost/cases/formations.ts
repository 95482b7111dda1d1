import { idsIn, replaceIds } from '#formations/export/ids.ts'
import { cyclicReferences, dependencyOrder } from '#formations/template/dependencies.ts'
import {
  expressionsIn,
  findExcessExpression,
  resolveValue,
  scopeOf,
  substitutedNames,
} from '#formations/template/expressions.ts'
import { parseYaml } from '#formations/template/yaml.ts'
import { isBelowAny } from '#formations/types/properties.ts'
import { flat, items, keys, nested, repeated, repetitions } from '../inputs.ts'
import { costCase } from '../measure.ts'

const TEMPLATE = { limit: 1_048_576, bound: 'bytes of a template' }
const VALUES = { limit: 50_000, bound: 'values of a body' }
const EXPRESSIONS = { limit: 10_000, bound: 'expressions of a template' }

const id = (at: number) => `agent_${String(at).padStart(26, '0')}`
const names = repetitions(['${', '${A', '${A}', '}', '$'])
const ids = repetitions(['a', '_', 'a_', 'u', '0', 'agent_', `${'0'.repeat(25)}_`, id(1)])
const scope = scopeOf({
  parameter: () => ({ text: 'x' }),
  resource: () => undefined,
  imported: () => 'unknown',
  attribute: () => 'unknown',
})

/** References of n resources to all earlier and later ones. */
const graph = (n: number) =>
  new Map(
    Array.from({ length: n }, (_, at) => [
      `${at}`,
      new Set(Array.from({ length: n }, (_, other) => `${other}`).filter(other => other !== `${at}`)),
    ]),
  )

const YAML = [
  '[',
  '{',
  '- ',
  '? ',
  'a: ',
  '&a ',
  '*a ',
  '"',
  "'",
  '"\\',
  "''",
  '#',
  '|\n ',
  ',',
  '[]',
  '"",',
  'a: b\n',
  '- - \n',
]

export default [
  costCase({ name: 'formations/export/ids.ts idsIn', ...TEMPLATE, inputs: ids, run: idsIn }),
  costCase({
    name: 'formations/export/ids.ts replaceIds',
    ...TEMPLATE,
    inputs: { ids: repeated(id(1)) },
    run: text => replaceIds(text, () => 'x'),
  }),
  costCase({
    name: 'formations/template/dependencies.ts cyclicReferences',
    // Edges grow with the square of the resources; a template of 1 MiB has 35,000.
    limit: 187 ** 2,
    bound: 'references in an export of 1 MiB',
    inputs: { complete: n => graph(Math.floor(Math.sqrt(n))) },
    run: cyclicReferences,
  }),
  costCase({
    name: 'formations/template/dependencies.ts dependencyOrder',
    limit: 187 ** 2,
    bound: 'references of a template of 1 MiB',
    inputs: {
      chain: n => {
        const all = Array.from({ length: Math.floor(Math.sqrt(n)) }, (_, at) => `${at}`)
        return new Map(all.map((name, at) => [name, all.slice(0, at)]))
      },
      'reverse chain': n => {
        const all = Array.from({ length: Math.floor(Math.sqrt(n)) }, (_, at) => `${at}`)
        return new Map(all.map((name, at) => [name, all.slice(at + 1)]))
      },
    },
    run: dependencyOrder,
  }),
  costCase({
    name: 'formations/template/expressions.ts findExcessExpression',
    ...TEMPLATE,
    inputs: Object.fromEntries(Object.entries(names).map(([name, text]) => [name, (n: number) => ({ sub: text(n) })])),
    run: value => findExcessExpression(value, 10_000),
  }),
  costCase<unknown>({
    name: 'formations/template/expressions.ts expressionsIn',
    ...EXPRESSIONS,
    inputs: { items: items(() => ({ ref: 'A' })), keys: keys(() => ({ ref: 'A' })) },
    run: value => expressionsIn(value, 'resources.A'),
  }),
  costCase<unknown>({
    name: 'formations/template/expressions.ts resolveValue',
    ...VALUES,
    inputs: { items: items(() => []), keys: keys(() => 1), words: items(() => 'word') },
    run: value => resolveValue(value, scope, 'resources.A'),
  }),
  costCase({
    name: 'formations/template/expressions.ts substitutedNames',
    ...EXPRESSIONS,
    inputs: { names: n => flat('${A}'.repeat(n)) },
    run: substitutedNames,
  }),
  costCase({
    name: 'formations/template/yaml.ts parseYaml',
    exception: {
      ms: 300,
      because: 'long texts run in threads; a text has at most 100,000 tokens of 3 microseconds',
    },
    limit: 1_048_576,
    bound: 'bytes of a template',
    inputs: {
      ...Object.fromEntries(YAML.map(part => [JSON.stringify(part), repeated(part)])),
      brackets: nested('[', ']'),
      'JSON of lists': n => flat(`{"a":[${'[],'.repeat(Math.floor((n - 20) / 3))}1]}`),
    },
    run: parseYaml,
  }),
  costCase({
    name: 'formations/types/properties.ts isBelowAny',
    limit: 1_000,
    bound: 'characters of a path',
    inputs: { segments: repeated('.a') },
    run: path => isBelowAny(path, new Set(['b'])),
  }),
]
