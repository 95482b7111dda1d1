import {
  type Content,
  componentName,
  type Description,
  JSON_TYPE,
  type Parameter,
  parametersOf,
  type Route,
  resolve,
  routesOf,
  type Schema,
} from './description.ts'
import { type CallExamples, examplesOf } from './examples.ts'
import { code, escapeMarkdown, type Page, slugOf, table } from './page.ts'

/** Reference pages: one for each tag, with its operations and the schemas that they use first. */

/** Schema keywords that are displayed, except the limits of every integer. */
const LIMITS = ['minimum', 'exclusiveMinimum', 'maximum', 'minLength', 'maxLength', 'minItems', 'maxItems', 'default']

export class Reference {
  readonly #description: Description
  readonly #base: string
  readonly #routes: readonly Route[]
  /** Page of each schema. */
  readonly #pageOf = new Map<string, string>()

  /** @param base address of the service in examples */
  constructor(description: Description, base: string) {
    this.#description = description
    this.#base = base
    this.#routes = routesOf(description)
    for (const { operation } of this.#routes) this.#place(operation, slugOf(operation.tags[0]))
  }

  /** Places the schemas that a part of the description uses, and those that they use, on a page. */
  #place(part: unknown, page: string): void {
    for (const [, kind, name] of JSON.stringify(part).matchAll(/"\$ref":"#\/components\/(\w+)\/([\w.-]+)"/g)) {
      if (kind === 'schemas') {
        if (this.#pageOf.has(name)) continue
        this.#pageOf.set(name, page)
      }
      this.#place((this.#description.components as Record<string, Record<string, unknown>>)[kind][name], page)
    }
  }

  /** Returns one page for each tag. */
  pages(): Page[] {
    return this.#description.tags.map(({ name, description }): Page => {
      const slug = slugOf(name)
      return {
        path: `reference/${slug}`,
        title: name,
        section: 'API',
        folder: 'reference/',
        markdown: () => {
          const routes = this.#routes.filter(({ operation }) => operation.tags[0] === name)
          const schemas = [...this.#pageOf]
            .filter(([schema, page]) => page === slug && !this.#isInline(schema))
            .map(([schema]) => schema)
          return [
            `# ${name}`,
            escapeMarkdown(description),
            ...routes.map(route => this.#operation(route, slug)),
            ...schemas.sort().map(schema => this.#schema(schema, slug)),
          ].join('\n\n')
        },
      }
    })
  }

  /** Whether a schema is written where it is used: it is no object and refers to objects at most. */
  #isInline(name: string): boolean {
    const { schemas } = this.#description.components
    const references = [...JSON.stringify(schemas[name]).matchAll(/"\$ref":"#\/components\/schemas\/(\w+)"/g)]
    return !schemas[name].properties && references.every(([, each]) => schemas[each].properties)
  }

  /** Returns the operations for the search: their ids, command words and the address of their entry. */
  entries(): { id: string; command: string; summary: string; path: string }[] {
    return this.#routes.map(({ operation }) => ({
      id: operation.operationId,
      command: operation['x-command']?.join(' ') ?? '',
      summary: operation.summary,
      path: `reference/${slugOf(operation.tags[0])}`,
    }))
  }

  /** Returns the examples of an operation for clients of the OpenAPI document (`x-codeSamples`). */
  samples(): Map<string, { lang: string; label: string; source: string }[]> {
    return new Map(
      this.#routes.map(route => [
        route.operation.operationId,
        samplesOf(examplesOf(this.#description, route, this.#base)).map(([label, lang, source]) => ({
          lang,
          label,
          source,
        })),
      ]),
    )
  }

  #operation(route: Route, page: string): string {
    const { method, path, operation } = route
    const { operationId, summary, description, requestBody } = operation
    const action = operation['x-iam-action']
    const also = operation['x-iam-also'] ?? []
    const permissions = [...(action ? [action] : []), ...also].map(each => `[${code(each)}](../permissions.md#${each})`)
    const parameters = parametersOf(this.#description, operation)
    const shown = samplesOf(examplesOf(this.#description, route, this.#base))
    return [
      `## ${code(operationId)}`,
      `${escapeMarkdown(summary)}.`,
      `**${method}** ${code(path)}`,
      description ? escapeMarkdown(description) : '',
      permissions.length > 0 ? `**Permissions**: ${permissions.join(', ')}` : '',
      parameters.length > 0
        ? `**Parameters**\n\n${table(
            ['Name', 'Type', 'Description'],
            parameters.map(each => this.#parameter(each, page)),
          )}`
        : '',
      requestBody
        ? `**Body**${requestBody.required ? '' : ', optional'}: ${this.#content(requestBody.content, page)}`
        : '',
      `**Responses**\n\n${table(['Status', 'Content'], this.#responses(route, page))}`,
      ...shown.map(([label, language, text]) => `**${label}**\n\n\`\`\`${language}\n${text}\n\`\`\``),
    ]
      .filter(part => part !== '')
      .join('\n\n')
  }

  #responses({ operation }: Route, page: string): string[][] {
    const own = operation['x-error-codes'] ?? []
    const statusOf = (each: string) => this.#description['x-error-codes'][each].status
    return Object.entries(operation.responses).flatMap(([status, shared]) => {
      const response = resolve(this.#description, shared)
      const { 'x-statuses': statuses, 'x-error-codes': common = [] } = response
      if (!statuses) return [[status, this.#content(response.content, page) || escapeMarkdown(response.description)]]
      return statuses.map(refused => {
        const codes = [...common, ...own].filter(each => statusOf(each) === refused)
        const named = codes.length > 0 ? codes : ['REQUEST_REJECTED']
        return [String(refused), named.map(each => `[${code(each)}](../errors.md#${each})`).join(', ')]
      })
    })
  }

  #content(content: Content = {}, page: string): string {
    return Object.entries(content)
      .map(([type, { schema }]) => `${type === JSON_TYPE ? '' : `${code(type)} `}${this.#body(schema, page)}`)
      .join('; ')
  }

  /** Returns the type of a body; the fields of an unnamed object follow it. */
  #body(schema: Schema, page: string): string {
    const fields = Object.entries(schema.properties ?? {})
    const types = fields.map(([name, field]) => `${code(name)}: ${this.#type(field, page)}`)
    return fields.length === 0 ? this.#type(schema, page) : `object with ${types.join(', ')}`
  }

  #parameter({ name, in: place, required, style, schema, description = '' }: Parameter, page: string): string[] {
    const shown = `${code(style === 'deepObject' ? `${name}[key]` : name)}${required ? ' \\*' : ''} (${place})`
    return [shown, this.#type(schema, page), escapeMarkdown(description)]
  }

  #schema(name: string, page: string): string {
    const schema = this.#description.components.schemas[name]
    const heading = `## ${code(name)}`
    const text = schema.description ? `${escapeMarkdown(schema.description)}\n\n` : ''
    const fields = this.#fields(schema, page)
    return `${heading}\n\n${text}${fields.length > 0 ? table(['Field', 'Type', 'Description'], fields) : this.#type(schema, page)}`
  }

  /** Returns the rows of the fields of an object; fields of nested objects have their path as name. */
  #fields({ properties = {}, required = [] }: Schema, page: string, prefix = ''): string[][] {
    const entries = Object.entries(properties).map(([name, field]) => [name, this.#inlined(field)] as const)
    return entries.flatMap(([name, field]) => [
      [
        `${code(prefix + name)}${required.includes(name) ? ' \\*' : ''}`,
        this.#type(field, page),
        escapeMarkdown(field.description ?? resolve(this.#description, field).description ?? ''),
      ],
      ...nestedObjects(field).flatMap(each =>
        this.#fields(each, page, `${prefix}${name}${each === field ? '.' : '[].'}`),
      ),
    ])
  }

  /** Replaces a reference to a schema that is written where it is used. */
  #inlined(schema: Schema): Schema {
    if (!schema.$ref || !this.#isInline(componentName(schema.$ref))) return schema
    const { $ref: _, ...own } = schema
    return { ...resolve(this.#description, schema), ...own }
  }

  /** Returns the type of a schema as one line; a named schema is a link to its entry. */
  #type(schema: Schema, page: string): string {
    if (schema.$ref) {
      const name = componentName(schema.$ref)
      if (this.#isInline(name)) return this.#type(this.#inlined(schema), page)
      const target = this.#pageOf.get(name)
      return `[${name}](${target === page ? '' : `${target}.md`}#${name})`
    }
    const alternatives = schema.anyOf ?? schema.oneOf
    if (alternatives) return alternatives.map(each => this.#type(each, page)).join(' or ')
    const values = schema.enum ?? (schema.const === undefined ? null : [schema.const])
    if (values) return values.map(value => code(String(value))).join(' or ')
    if (schema.allOf) return schema.allOf.map(each => this.#type(each, page)).join(' and ')
    const type = [schema.type ?? 'any'].flat().join(' or ')
    const limits = LIMITS.filter(name => name in schema && Math.abs(Number(schema[name])) !== Number.MAX_SAFE_INTEGER)
    const facts = [schema.format, ...limits.map(name => `${name} ${JSON.stringify(schema[name])}`)].filter(Boolean)
    const text = escapeMarkdown(facts.length > 0 ? `${type} (${facts.join(', ')})` : type)
    const element = schema.items ?? schema.additionalProperties
    if (typeof element === 'object' && Object.keys(element).length > 0) return `${text} of ${this.#type(element, page)}`
    return text
  }
}

/** Returns the unnamed objects with fields that a schema is, contains, or is a list of. */
function nestedObjects(schema: Schema): Schema[] {
  if (schema.properties) return [schema]
  const { items, additionalProperties, anyOf = [], oneOf = [] } = schema
  const elements = [
    items,
    typeof additionalProperties === 'object' ? additionalProperties : undefined,
    ...anyOf,
    ...oneOf,
  ]
  return elements.flatMap(each => (each ? nestedObjects(each) : []))
}

const samplesOf = ({
  curl,
  typescript,
  python,
  cli,
}: CallExamples): [label: string, language: string, source: string][] =>
  (
    [
      ['curl', 'sh', curl],
      ['TypeScript', 'ts', typescript],
      ['Python', 'python', python],
      ['CLI', 'sh', cli],
    ] as const
  ).flatMap(([label, language, source]) => (source === null ? [] : [[label, language, source]]))
