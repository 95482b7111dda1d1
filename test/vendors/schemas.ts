/**
 * Schemas of arguments as tools of the world have them, by the oddity of each: written from the facts of generators (zod,
 * pydantic, OpenAPI, Go, Java, C#), of servers of MCP, and of people.
 */

type Schema = Record<string, unknown>

const object = (properties: Schema, more: Schema = {}): Schema => ({ type: 'object', properties, ...more })
const text = { type: 'string' }
const number = { type: 'number' }
const draft = (name: string) => ({ $schema: `http://json-schema.org/${name}/schema#` })
const id = { id: text }

export const SCHEMAS: Record<string, Schema> = {
  empty: {},
  'type alone': { type: 'object' },
  'no type': { properties: id },
  'empty properties': object({}),
  'null type list': object({ a: { type: ['string', 'null'] } }),
  'type list': object({ a: { type: ['string', 'number', 'boolean'] } }),
  'nullable of OpenAPI': object({ a: { type: 'string', nullable: true } }),
  'optional of pydantic': object({ a: { anyOf: [text, { type: 'null' }], default: null, title: 'A' } }),
  'union of literals': object({ kind: { anyOf: [{ const: 'a' }, { const: 'b' }] } }),
  'enum without type': object({ kind: { enum: ['a', 'b'] } }),
  'enum of mixed values': object({ kind: { enum: ['a', 1, null, true] } }),
  'enum of numbers': object({ size: { type: 'integer', enum: [1, 2, 3] } }),
  'empty text in an enum': object({ kind: { type: 'string', enum: ['', 'a'] } }),
  'const without type': object({ kind: { const: 'a' } }),
  'any value': object({ value: {} }),
  'any value by true': object({ value: true }),
  'no value by false': object({ value: false, ...id }),
  'array without items': object({ list: { type: 'array' } }),
  'array of any': object({ list: { type: 'array', items: {} } }),
  'array of arrays': object({ grid: { type: 'array', items: { type: 'array', items: number } } }),
  'tuple of draft 7': object({ pair: { type: 'array', items: [number, number] } }, draft('draft-07')),
  'tuple of 2020-12': object({ pair: { type: 'array', prefixItems: [number, text], items: false } }),
  'tuple with a rest': object({ pair: { type: 'array', items: [text], additionalItems: number } }),
  contains: object({ list: { type: 'array', items: text, contains: { const: 'a' }, minContains: 1 } }),
  'unique items': object({ list: { type: 'array', items: text, uniqueItems: true, minItems: 1 } }),
  'object without properties': object({ map: { type: 'object' } }),
  'map of texts': object({ headers: { type: 'object', additionalProperties: text } }),
  'map by pattern': object({
    headers: { type: 'object', patternProperties: { '^x-': text }, additionalProperties: false },
  }),
  'names of properties': object({ map: { type: 'object', propertyNames: { pattern: '^[a-z]+$' } } }),
  closed: object(id, { additionalProperties: false, required: ['id'] }),
  'open by a schema': object(id, { additionalProperties: number }),
  'required but unknown': object(id, { required: ['id', 'gone'] }),
  'union at the top': { type: 'object', anyOf: [object(id), object({ name: text })] },
  'one of at the top': { oneOf: [object(id, { required: ['id'] }), object({ name: text }, { required: ['name'] })] },
  'all of at the top': { allOf: [object(id), object({ name: text }, { required: ['name'] })] },
  'discriminated union': object({
    shape: {
      oneOf: [object({ kind: { const: 'circle' }, r: number }), object({ kind: { const: 'square' }, a: number })],
      discriminator: { propertyName: 'kind' },
    },
  }),
  condition: object(
    { kind: text, size: number },
    { if: { properties: { kind: { const: 'a' } } }, then: { required: ['size'] }, else: { required: ['kind'] } },
  ),
  'dependent properties': object({ a: text, b: text }, { dependentRequired: { a: ['b'] } }),
  'dependencies of draft 4': object({ a: text, b: text }, { ...draft('draft-04'), dependencies: { a: ['b'] } }),
  not: object({ a: { not: { type: 'null' } } }),
  'definitions of draft 7': object(
    { at: { $ref: '#/definitions/at' } },
    { definitions: { at: text }, ...draft('draft-07') },
  ),
  'definitions of 2020-12': object({ at: { $ref: '#/$defs/at' } }, { $defs: { at: object({ x: number }) } }),
  'reference with siblings': object(
    { at: { $ref: '#/$defs/at', description: 'Where', default: 'x' } },
    { $defs: { at: text } },
  ),
  'reference at the top': { $ref: '#/$defs/input', $defs: { input: object(id) } },
  'reference to itself': object(
    { node: { $ref: '#/$defs/node' } },
    {
      $defs: { node: object({ name: text, children: { type: 'array', items: { $ref: '#/$defs/node' } } }) },
    },
  ),
  'reference to the root': object({ name: text, parent: { $ref: '#' } }),
  'reference to a property': object({ a: text, b: { $ref: '#/properties/a' } }),
  'reference by an anchor': object({ a: { $ref: '#at' } }, { $defs: { at: { $anchor: 'at', type: 'string' } } }),
  'reference to the web': object({ a: { $ref: 'https://example.com/a.json' } }),
  'escaped reference': object({ a: { $ref: '#/$defs/a~1b' } }, { $defs: { 'a/b': text } }),
  'keys of OData': object({ $filter: text, $top: { type: 'integer' } }),
  'keys with dots, blanks and brackets': object({ 'a.b': text, 'a b': text, 'ids[]': { type: 'array', items: text } }),
  'keys of other scripts': object({ 名前: text, größe: number }),
  'long key': object({ ['k'.repeat(80)]: text }),
  'prototype as a key': object(JSON.parse('{"__proto__":{"type":"string"},"constructor":{"type":"string"}}')),
  'odd formats': object({
    a: { type: 'string', format: 'int64' },
    b: { type: 'string', format: 'uri' },
    c: { type: 'integer', format: 'int32' },
  }),
  bounds: object({
    a: { type: 'number', minimum: 0, exclusiveMaximum: 10, multipleOf: 0.5 },
    b: { type: 'string', minLength: 1, maxLength: 9 },
  }),
  'bounds of draft 4': object({ a: { type: 'number', minimum: 0, exclusiveMinimum: true } }, draft('draft-04')),
  'pattern of PCRE': object({ a: { type: 'string', pattern: '(?i)^[a-z\\/]+\\Z' } }),
  content: object({ file: { type: 'string', contentEncoding: 'base64', contentMediaType: 'image/png' } }),
  extensions: object({
    a: { type: 'string', 'x-order': 1, example: 'b', deprecated: true, readOnly: true, xml: { name: 'a' } },
  }),
  'null keywords': object({ a: { type: 'string', description: null, enum: null, default: null } }),
  'null property': object({ a: null }),
  'examples and comments': object({ a: { type: 'string', examples: ['b'], $comment: 'c', title: 'A' } }),
  'unevaluated properties': object(id, { unevaluatedProperties: false }),
  deep: Array.from({ length: 12 }).reduce<Schema>(inner => object({ inner }), object(id)),
}
