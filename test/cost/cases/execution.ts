import type { JsonObject } from '#core/api/flatten.ts'
import { stripCodeFence } from '#execution/generations/loop/structured-output.ts'
import { extractedFacts, factsOfText } from '#execution/memory-rules/facts.ts'
import { BodyReader } from '#execution/providers/body-facts.ts'
import { outgoingProfile } from '#execution/providers/outgoing/profile.ts'
import { contentWithMedia } from '#execution/providers/outgoing/result-media.ts'
import { MAX_SCHEMAS, sentSchema } from '#execution/providers/outgoing/tool-schemas.ts'
import { EventReader } from '#execution/tools/event-reader.ts'
import { fillPlaceholders, fillTokens, misplacedTokens, placeholdersOf, presetTokens } from '#execution/tools/tokens.ts'
import { items, nested, repeated, repetitions } from '../inputs.ts'
import { costCase } from '../measure.ts'

const MODEL_TEXT = { limit: 1024 * 1024, bound: 'bytes of a reply of a model' }
const CHUNK = { limit: 64 * 1024, bound: 'bytes of a chunk of a socket' }
const DEFINITION = { limit: 256 * 1024, bound: 'bytes of the definition of a tool' }

const tokens = repetitions(['{{secret:', '{{context:', '{{', 'sec_a', '}}', '|', '~'])
const placeholders = repetitions(['${body.', '{', '}', 'a', '$'])
const facts = { ...repetitions(['[', '{', ']', '}', '"', '\\', '[]', '{}']), nested: nested('[', ']') }

/** A profile that renames and merges, and a second that replaces references. */
const SENT = (['anthropic', 'google'] as const).map(type => [type, outgoingProfile(type, 'openai', 'm')] as const)

const named = (n: number, name: string, schema: object) =>
  Object.fromEntries(Array.from({ length: n }, (_, at) => [`${name}${at}`, schema]))
/** Arrays, each of which gets a schema of its items. */
const arrays = (n: number, name: string) => named(Math.floor(n / 2), name, { type: 'array' })
const references = (n: number) => named(n - 1, 'p', { $ref: '#/$defs/a' })

export default [
  costCase({
    name: 'execution/generations/loop/structured-output.ts stripCodeFence',
    ...MODEL_TEXT,
    inputs: repetitions(['```', '`', '\n', ' ', 'a', '```json\n']),
    run: stripCodeFence,
  }),
  costCase({
    name: 'execution/memory-rules/facts.ts factsOfText',
    ...MODEL_TEXT,
    inputs: facts,
    run: factsOfText,
  }),
  costCase({
    name: 'execution/memory-rules/facts.ts extractedFacts',
    ...MODEL_TEXT,
    inputs: facts,
    run: extractedFacts,
  }),
  ...(['custom', 'google'] as const).map(type =>
    costCase({
      name: `execution/providers/body-facts.ts BodyReader for ${type}`,
      ...CHUNK,
      inputs: {
        ...repetitions(['"usage": {', '"service_tier": "', '"modelVersion":"', '{', '}', '"']),
        open: n => `"usage": {${'a'.repeat(n)}`,
        objects: n => `"usage": {${'{}'.repeat(n / 2)}`,
      },
      run: text => BodyReader.of(type)?.read(Buffer.from(text)),
    }),
  ),
  costCase({
    name: 'execution/tools/event-reader.ts EventReader',
    ...CHUNK,
    inputs: {
      ...Object.fromEntries(
        Object.entries(repetitions(['\n', '\r', 'data:', 'a'])).map(([name, text]) => [
          name,
          (n: number) => [Buffer.from(text(n))],
        ]),
      ),
      'chunks of 16 bytes': n => items(() => Buffer.from('data: aaaaaaaaaa'))(n / 16),
    },
    run: chunks => {
      const reader = new EventReader()
      for (const chunk of chunks) reader.read(chunk)
    },
  }),
  costCase({
    name: 'execution/tools/tokens.ts fillTokens',
    ...DEFINITION,
    inputs: tokens,
    run: text => fillTokens(text, { secrets: new Map([['sec_a', 'x']]), context: {} }, () => ''),
  }),
  costCase({
    name: 'execution/tools/tokens.ts misplacedTokens',
    ...DEFINITION,
    inputs: tokens,
    run: url => misplacedTokens({ url }),
  }),
  costCase({ name: 'execution/tools/tokens.ts presetTokens', ...DEFINITION, inputs: tokens, run: presetTokens }),
  costCase({
    name: 'execution/tools/tokens.ts placeholdersOf',
    ...DEFINITION,
    inputs: placeholders,
    run: placeholdersOf,
  }),
  costCase({
    name: 'execution/tools/tokens.ts fillPlaceholders',
    ...DEFINITION,
    inputs: { ...placeholders, arguments: repeated('{a}') },
    run: text => fillPlaceholders(text, () => 'x'),
  }),
  costCase({
    name: 'execution/providers/outgoing/result-media.ts contentWithMedia',
    limit: 1024 * 1024,
    bound: 'bytes of the result of a tool',
    inputs: Object.fromEntries(
      Object.entries(repetitions(['A', '=', 'A=', '+/'])).map(([name, textOf]) => [
        name,
        (n: number) => [{ type: 'image', mimeType: 'image/png', data: textOf(n) }],
      ]),
    ),
    run: contentWithMedia,
  }),
  ...SENT.map(([type, profile]) =>
    costCase({
      name: `execution/providers/outgoing/tool-schemas.ts sentSchema for ${type}`,
      // Without the one at the top.
      limit: MAX_SCHEMAS - 1,
      bound: 'schemas of the definition of a tool',
      inputs: {
        properties: n => ({ type: 'object', properties: arrays(n, 'p') }),
        'odd names': n => ({ type: 'object', properties: arrays(n, 'ü ') }),
        references: n => ({ type: 'object', properties: references(n), $defs: { a: { type: 'string' } } }),
        tuple: n => ({ type: 'object', items: Array(n - 1).fill({}) }),
      },
      run: (schema: JsonObject) => sentSchema(schema, profile),
    }),
  ),
]
