import {
  clientRoutes,
  contentOf,
  type Description,
  FORM,
  fieldsOf,
  JSON_TYPE,
  resolve,
  type Schema,
} from './description.ts'

/** A field of a command. */
export type CommandField = {
  name: string
  in: 'path' | 'query' | 'body'
  required?: true
  type?: string | string[]
  enum?: unknown[]
  /** Type of the items of a list. */
  items?: { type?: string | string[]; enum?: unknown[]; keys?: string[] }
  /** Names of the fields of an object. */
  keys?: string[]
  description?: string
  secret?: true
}

/** An operation as a command line sees it. */
export type Command = {
  words: string[]
  id: string
  method: string
  path: string
  summary: string
  description?: string
  action?: string
  codes?: string[]
  fields: CommandField[]
  /** Whether the body has texts under any names. */
  open?: true
  /** Types of a body that is not JSON. */
  consumes?: string[]
  /** Types of an answer that is not JSON. */
  produces?: string[]
  paged?: string
  columns?: string[]
  stream?: unknown
  wait?: unknown
  dryRun?: string
}

const typeOf = (
  description: Description,
  schema: Schema | undefined,
): Pick<CommandField, 'type' | 'enum' | 'items' | 'keys'> => {
  const { type, enum: values, const: value, items, anyOf, oneOf, properties } = resolve(description, schema ?? {})
  const branches = (anyOf ?? oneOf)?.map(each => typeOf(description, each)).filter(each => each.type !== 'null')
  if (branches?.length === 1) return branches[0]
  const types = branches && [...new Set(branches.flatMap(each => each.type ?? []))]
  const keys = [...new Set(branches ? branches.flatMap(each => each.keys ?? []) : Object.keys(properties ?? {}))]
  const found = values ?? (value === undefined ? undefined : [value])
  return {
    ...(type || types ? { type: type ?? (types?.length === 1 ? types[0] : types) } : {}),
    ...(found ? { enum: found } : {}),
    ...(items ? { items: typeOf(description, items) } : {}),
    ...(keys.length > 0 ? { keys } : {}),
  }
}

/** Returns the file of commands: JSON with one command per line, so that a reader parses only the lines it needs. */
export const commandFile = (description: Description, etag: string | null = null): string =>
  `{"version":${JSON.stringify(description.info.version)},"etag":${JSON.stringify(etag)},"commands":[\n${commandsOf(
    description,
  )
    .map(each => JSON.stringify(each))
    .join(',\n')}\n]}\n`

/** Returns the commands of all operations, for the command line. */
export function commandsOf(description: Description): Command[] {
  return clientRoutes(description).map(({ method, path, operation }): Command => {
    const sent = operation.requestBody?.content ?? {}
    const body = resolve(description, (sent[JSON_TYPE] ?? sent[FORM])?.schema ?? {})
    const fields = fieldsOf(description, operation).map(
      ({ name, in: part, required, schema, description: text }): CommandField => ({
        name,
        in: part,
        ...(required ? { required } : {}),
        ...typeOf(description, schema),
        ...(text ? { description: text } : {}),
        ...(resolve(description, schema ?? {})['x-secret'] ? { secret: true } : {}),
      }),
    )
    const answered = contentOf(description, operation)
    const produces = Object.keys(answered).filter(type => type !== JSON_TYPE)
    const consumes = Object.keys(sent).filter(type => type !== JSON_TYPE)
    return {
      words: operation['x-command']!,
      id: operation.operationId,
      method,
      path,
      summary: operation.summary,
      description: operation.description,
      action: operation['x-iam-action'] ?? undefined,
      codes: operation['x-error-codes'],
      fields,
      ...(sent[JSON_TYPE] && body.additionalProperties ? { open: true } : {}),
      ...(consumes.length > 0 ? { consumes } : {}),
      ...(produces.length > 0 ? { produces } : {}),
      paged: operation['x-paged'],
      columns: answered[JSON_TYPE]?.schema['x-columns'],
      stream: operation['x-stream'],
      wait: operation['x-wait'],
      dryRun: operation['x-dry-run'],
    }
  })
}
