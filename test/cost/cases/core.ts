import { z } from 'zod'
import { changesBetween } from '#core/api/compare.ts'
import { storabilityProblem, validationProblems, wirePath } from '#core/api/validate.ts'
import { ExactNumber, parseExactJson } from '#core/base/exact-json.ts'
import { excessOfJson } from '#core/base/json-limits.ts'
import { redactCredentials, redactedPath } from '#core/base/log.ts'
import { containsText, storableText, storableValue, truncateBytes } from '#core/base/storable-text.ts'
import { expressionProblem, readPath } from '#core/expressions/evaluate.ts'
import { rootReadsOf, unknownOperators } from '#core/expressions/references.ts'
import { compileGlob, globMatches } from '#core/iam/glob.ts'
import { deep, flat, items, keys, repeated, repetitions } from '../inputs.ts'
import { costCase } from '../measure.ts'

const BODY = { limit: 4 * 1024 * 1024, bound: 'bytes of a JSON body' }
const VALUES = { limit: 50_000, bound: 'values of a JSON body' }

const EXPRESSION = { limit: 16 * 1024, bound: 'values of an expression of 64 KiB' }
/** Deeper values are refused when a body is read. */
const MAX_DEPTH = 90
const expressions = {
  items: items(at => ({ var: `a${at % 7}` })),
  'unknown operators': items(() => ({ no: 1 })),
  keys: keys(() => ({ var: 'a' })),
  'items at the deepest level': (n: number) => deep(inner => [inner], items(() => ({ no: 1 }))(n))(MAX_DEPTH),
  'operators at the deepest level': (n: number) =>
    deep(inner => ({ '!': inner }), items(() => ({ var: 'a' }))(n))(MAX_DEPTH),
}

export default [
  costCase<unknown>({
    name: 'core/expressions/evaluate.ts expressionProblem',
    ...EXPRESSION,
    inputs: expressions,
    run: expressionProblem,
  }),
  costCase({
    name: 'core/expressions/evaluate.ts readPath',
    limit: 64 * 1024,
    bound: 'characters of a path',
    inputs: repetitions(['.', 'a', 'constructor']),
    run: path => readPath({ a: {} }, path),
  }),
  costCase<unknown>({
    name: 'core/expressions/references.ts rootReadsOf',
    ...EXPRESSION,
    inputs: expressions,
    run: rootReadsOf,
  }),
  costCase<unknown>({
    name: 'core/expressions/references.ts unknownOperators',
    ...EXPRESSION,
    inputs: expressions,
    run: unknownOperators,
  }),
  costCase({
    name: 'core/base/exact-json.ts parseExactJson',
    limit: 1024 * 1024,
    bound: 'bytes of JSON without a limit of values',
    inputs: {
      digits: n => `[${'1'.repeat(n)}]`,
      zeros: n => `[0.${'0'.repeat(n)}]`,
      'digits of a text': n => JSON.stringify('1.'.repeat(n / 2)),
      numbers: n =>
        `[${Array(Math.ceil(n / 24))
          .fill('12345678901234567890.10')
          .join()}]`,
    },
    run: parseExactJson,
  }),
  costCase<unknown>({
    name: 'core/api/validate.ts parse',
    ...VALUES,
    inputs: {
      'numbers where others are declared': n => Array(n).fill(new ExactNumber('1.0')),
      'integers that no double keeps': n => Array(n).fill(new ExactNumber('2512292042121000001')),
    },
    run: value => validationProblems(z.array(z.number()), value),
  }),
  costCase({
    name: 'core/base/json-limits.ts excessOfJson',
    ...BODY,
    inputs: Object.fromEntries(
      Object.entries(repetitions(['"', '\\', '{'])).map(([name, text]) => [name, (n: number) => Buffer.from(text(n))]),
    ),
    run: bytes => excessOfJson(bytes, Number.POSITIVE_INFINITY),
  }),
  costCase<unknown>({
    name: 'core/api/validate.ts storabilityProblem',
    ...VALUES,
    inputs: { items: items(() => []), texts: items(() => 'text'), keys: keys(() => 1), deep: n => deep(v => [v])(n) },
    run: storabilityProblem,
  }),
  costCase({
    name: 'core/api/validate.ts wirePath',
    ...BODY,
    inputs: { 'long key': n => [repeated('a')(n)], 'many keys': items(() => 'a') },
    run: path => wirePath(path),
  }),
  costCase<unknown[]>({
    name: 'core/api/compare.ts changesBetween',
    limit: 25_000,
    bound: 'values of one of two versions',
    inputs: {
      items: n => [items(at => at)(n), items(at => at + 1)(n)],
      keys: n => [keys(() => 1)(n), keys(() => 2)(n)],
      'other keys': n => [
        keys(() => 1)(n),
        keys(
          () => 1,
          at => `other_${at}`,
        )(n),
      ],
    },
    run: ([before, after]) => changesBetween(before, after),
  }),
  costCase({
    name: 'core/base/storable-text.ts storableText',
    limit: 1024 * 1024,
    bound: 'bytes of a reply of a model or a tool',
    inputs: { 'NUL characters': repeated('\0'), text: repeated('ab ') },
    run: text => storableText(text),
  }),
  costCase<unknown>({
    name: 'core/base/storable-text.ts storableValue',
    ...VALUES,
    inputs: { items: items(() => []), texts: items(() => 'a\0'), keys: keys(() => 1) },
    run: storableValue,
  }),
  costCase({
    name: 'core/base/storable-text.ts truncateBytes',
    ...BODY,
    inputs: { text: repeated('a'), wide: n => flat('😀'.repeat(Math.floor(n / 4))) },
    run: text => truncateBytes(text, 16_384),
  }),
  costCase({
    name: 'core/base/storable-text.ts containsText',
    limit: 1024 * 1024,
    bound: 'bytes of an output that a scorer reads',
    inputs: {
      'equal letters': n => ({ text: repeated('a')(n), part: `${'a'.repeat(65_000)}b` }),
      'near matches': n => ({ text: repeated('ab')(n), part: `${'ab'.repeat(30_000)}c` }),
    },
    run: ({ text, part }) => containsText(text, part),
  }),
  costCase({
    name: 'core/iam/glob.ts compileGlob',
    limit: 2_048,
    bound: 'characters of a resource pattern',
    inputs: { stars: repeated('*'), 'stars and letters': repeated('*a') },
    run: compileGlob,
  }),
  costCase({
    name: 'core/iam/glob.ts globMatches',
    // Bounded by pattern length times value length, so the pattern has a fixed length.
    limit: 2_048,
    bound: 'characters of a path',
    inputs: {
      'equal letters': repeated('a'),
      'near matches': repeated('ab'),
    },
    run: value => globMatches(compileGlob(`*${'a'.repeat(500)}b`), value),
  }),
  costCase({
    name: 'core/base/log.ts redactCredentials',
    limit: 1024 * 1024,
    bound: 'bytes of a message of an error',
    inputs: repetitions(['sk_', 'eyJ', 'whsec_', '.', '-', 'abcdefgh', ' ']),
    run: redactCredentials,
  }),
  costCase({
    name: 'core/base/log.ts redactedPath',
    limit: 16 * 1024,
    bound: 'bytes of a request line',
    inputs: repetitions(['/', '?', 'sk_', '%']),
    run: redactedPath,
  }),
]
