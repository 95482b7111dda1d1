import { type Call, first, type Rule } from './rules.ts'
import { hasType, nodes, UNIONS } from './schemas.ts'
import { context, strictProblems } from './strict-schemas.ts'

/** A function that a request offers, and where its schema is. */
type Offered = { i: number; name: string; schema: any; strict?: boolean }

/** Rules of OpenAI for the schemas of functions; `path` is the place of a schema in the request. */
export const functionSchemaRules = (offered: (call: Call) => Offered[], path: string): Rule[] => {
  const rule = (name: string, date: string, text: string, problem: (schema: any) => Iterable<object>): Rule => ({
    name,
    source: 'S',
    date,
    message: `Invalid schema for function '{name}': ${text}`,
    error: { param: path, code: 'invalid_function_parameters' },
    breach: first(function* (call) {
      for (const { i, name, schema } of offered(call)) for (const found of problem(schema)) yield { i, name, ...found }
    }),
  })
  return [
    rule(
      'schema type',
      '2025-06',
      `schema must be a JSON Schema of 'type: "object"', got 'type: "{type}"'.`,
      function* (schema) {
        if (schema?.type !== 'object') yield { type: schema?.type ?? 'None' }
      },
    ),
    rule(
      'schema union at the top',
      '2026-01',
      "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level.",
      function* (schema) {
        if ([...UNIONS, 'enum', 'not'].some(key => key in schema)) yield {}
      },
    ),
    rule('array without items', '2025-11', 'In context={context}, array schema missing items.', function* (schema) {
      for (const { path, schema: node } of nodes(schema))
        if (hasType(node, 'array') && !('items' in node)) yield { context: context(path) }
    }),
    rule(
      'object without properties',
      '2025-08',
      'In context=(), object schema missing properties.',
      function* (schema) {
        if (schema?.type === 'object' && !('properties' in schema)) yield {}
      },
    ),
    {
      ...rule('strict schema', '2026-11', 'In context={context}, {problem}', () => []),
      breach: first(function* (call) {
        for (const { i, name, schema, strict } of offered(call))
          if (strict) for (const found of strictProblems(schema)) yield { i, name, ...found }
      }),
    },
  ]
}

/** The rule of OpenAI for the schema of a strict answer. */
export const strictAnswerRule = (
  format: (body: any) => { name?: string; schema?: unknown; strict?: boolean } | undefined,
  param: string,
  more: Partial<Rule> = {},
): Rule => ({
  name: 'strict answer schema',
  source: 'S',
  date: '2026-11',
  message: "Invalid schema for response_format '{name}': In context={context}, {problem}",
  error: { param },
  breach: first(function* ({ body }) {
    const { name = '', schema, strict } = format(body) ?? {}
    if (!strict) return
    for (const found of strictProblems(schema)) yield { name, ...found }
  }),
  ...more,
})
