import { readFileSync } from 'node:fs'
import { z } from 'zod'
import type { JsonObject } from '#core/api/flatten.ts'
import { validationProblems } from '#core/api/validate.ts'
import type { Problem } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { SchemaError, schemaChecks } from '#core/json-schema/checks.ts'
import { wireProblemsAtFields } from '#core/json-schema/problems.ts'
import { builtInNames } from './built-in.ts'
import type { HandledType, RegisteredType } from './model.ts'
import { propertyPath } from './properties.ts'

/** Resource types that the operator registers. Their handlers receive signed requests. */

const anObject = z.record(z.string(), z.unknown())

const Entry = z.strictObject({
  name: z
    .string()
    .regex(/^[a-z][a-z0-9_]*$/, 'must be a lower-case letter followed by lower-case letters, digits or underscores'),
  description: z.string().optional(),
  handler: z.strictObject({
    url: z.url({ protocol: /^https?$/ }),
    secret_env: z.string().min(1),
    timeout_seconds: z.number().positive().max(3600).default(30),
  }),
  capabilities: z.array(z.enum(['validate', 'read'])).default([]),
  schema: anObject.refine(schema => schema.type === 'object', 'must be a schema of type object'),
  write_only_properties: z.array(z.string()).default([]),
})

const File = z.strictObject({ resource_types: z.array(Entry) })

const RULES = { strict: false } as const

const refuse = (file: string, problem: string): never => {
  throw new Error(`FORMATION_RESOURCE_TYPES_CONFIG ${file}: ${problem}`)
}

/**
 * Reads the file of FORMATION_RESOURCE_TYPES_CONFIG.
 * @throws Error with the file and the entry
 */
export function readRegisteredTypes(file: string, environment: NodeJS.ProcessEnv): RegisteredType[] {
  const content = readJson(file)
  const [problem] = validationProblems(File, content)
  if (problem) refuse(file, `${problem.path || 'the file'} ${problem.message}`)
  const { resource_types } = File.parse(content)
  const names = new Set<string>()
  return resource_types.map(({ handler, ...entry }) => {
    const { name, schema, write_only_properties } = entry
    if (names.has(name)) refuse(file, `${name} is a duplicate`)
    if (builtInNames().includes(name)) refuse(file, `${name} is the name of a built-in type`)
    names.add(name)
    const secret = environment[handler.secret_env]
    if (!secret) refuse(file, `${name}: the environment variable ${handler.secret_env} is not set`)
    const properties = Object.keys((schema.properties as JsonObject | undefined) ?? {})
    for (const property of write_only_properties)
      if (!properties.includes(property))
        refuse(file, `${name}: write_only_properties names ${property}, which schema does not declare`)
    return {
      ...entry,
      handler: { url: handler.url, secret: secret as string, timeoutMs: handler.timeout_seconds * 1000 },
    }
  })
}

function readJson(file: string): unknown {
  try {
    return JSON.parse(readFileSync(file, 'utf8'))
  } catch (error) {
    return refuse(
      file,
      error instanceof SyntaxError ? 'is not valid JSON' : `cannot be read: ${(error as Error).message}`,
    )
  }
}

/** Registered types by name. */
export const registeredTypes = processSingleton((services): ReadonlyMap<string, HandledType> => {
  const { FORMATION_RESOURCE_TYPES_CONFIG: file } = services.config
  const entries = file ? readRegisteredTypes(file, process.env) : []
  return new Map(entries.map(entry => [entry.name, typeOf(entry)]))
})

/**
 * Validates the registered types at start.
 * @throws Error with the file and the entry
 */
export async function checkRegisteredTypes(services: Services): Promise<void> {
  const { FORMATION_RESOURCE_TYPES_CONFIG: file } = services.config
  for (const { name, registered } of registeredTypes(services).values())
    try {
      await schemaChecks(services).check({ project: '*', text: JSON.stringify(registered.schema), rules: RULES })
    } catch (error) {
      if (!(error instanceof SchemaError)) throw error
      refuse(file as string, `${name}: schema ${error.message}`)
    }
}

function typeOf(entry: RegisteredType): HandledType {
  const properties = Object.entries((entry.schema.properties as Record<string, JsonObject> | undefined) ?? {})
  const required = (entry.schema.required as string[] | undefined) ?? []
  return {
    name: entry.name,
    registered: entry,
    properties: new Map(properties.map(([name, schema]) => [name, { required: required.includes(name), schema }])),
    fixed: new Set(),
    replaced: new Set(),
    writeOnly: entry.write_only_properties,
    attributes: null,
    exampleId: 'resource',
    check: (services, values, options) => problemsOf(services, entry, values, options),
  }
}

async function problemsOf(
  services: Services,
  { name, schema }: RegisteredType,
  values: JsonObject,
  { at, complete }: { at: string; complete: boolean },
): Promise<Problem[]> {
  const known = Object.keys((schema.properties as JsonObject | undefined) ?? {})
  const problems = Object.keys(values)
    .filter(property => !known.includes(property))
    .map(property => ({
      code: 'UNKNOWN_PROPERTY',
      path: propertyPath(at, property),
      message: `is not a property of ${name}`,
    }))
  const applicable = complete ? schema : { ...schema, required: [] }
  const text = JSON.stringify(applicable)
  const [found] = await schemaChecks(services).problems({ project: '*', text, rules: RULES }, [values])
  return [...problems, ...wireProblemsAtFields(found, at)]
}
