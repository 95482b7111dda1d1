import type { z } from 'zod'
import type { Decision } from '../api/audit.ts'
import { authorColumn, authorOf } from '../api/authors.ts'
import { refuseDependents, removeRow, runDeleteHooks } from '../api/dependents.ts'
import type { EndUserAccess } from '../api/end-user.ts'
import type { EntryFields } from '../api/entry-fields.ts'
import { type Filters, filterConditions, filterSchema } from '../api/filters.ts'
import type { Made } from '../api/idempotency.ts'
import { type Kind, type KindRow, pickFields, selectList, toPascalCase, type Values, withArticle } from '../api/kind.ts'
import { booleanQuery, listTable, pageOf } from '../api/lists.ts'
import {
  type Context,
  type GateVerdict,
  itemOperation,
  type Operation,
  type OperationBase,
  operation,
  result,
  type ValidateInput,
  type WarningInput,
} from '../api/operation.ts'
import type { Tags } from '../api/record.ts'
import { requireReferences } from '../api/references.ts'
import { replacedTags, tagOperations } from '../api/tags.ts'
import type { ErrorCode, Problem } from '../base/errors.ts'
import { type Fragment, sql } from '../db/sql.ts'
import { type Caller, principalRecord } from '../iam/caller.ts'
import { requireVersion, versionAuthor } from './version.ts'
import { type Restore, versionOperations } from './version-operations.ts'
import type { Versions } from './versioned.ts'

/** Parts of an operation that may differ from the defaults of the kind. */
type Overrides = Partial<Pick<Operation, 'id' | 'path' | 'action' | 'summary'>> &
  Pick<
    Partial<Operation>,
    | 'description'
    | 'command'
    | 'checkedBy'
    | 'alsoActions'
    | 'gate'
    | 'byDefinitions'
    | 'admit'
    | 'bodyLimit'
    | 'bodyTimeMs'
    | 'bodyOptional'
    | 'internal'
    | 'mcp'
    | 'granted'
    | 'secretAnswer'
    | 'replica'
  > & {
    endUser?: EndUserAccess
    raises?: ErrorCode[]
    answers?: Operation['answers']
  }

/** Overrides of an operation on a row, which may have an owner gate. */
type ItemOverrides<Row> = Overrides & { decide?: (caller: Caller, row: Row, surface: string) => GateVerdict }

type Conditions = (Fragment | null | undefined | false)[]

type QueryContext<B = undefined, R = undefined> = Context<Record<string, never>, B, R>

/** An existing row, returned by an idempotent create with status 200 and without an event. */
export type ExistingRow<Row> = { existing: Row }

const toCamelCase = (name: string): string =>
  name.replace(/[-_]([a-z])/g, (_match, letter: string) => letter.toUpperCase())

/** What the operations of a resource have in common. */
type ResourceFacts<Row> = {
  path: string
  tag: string
  module: string
  noun: string
  nouns: string
  words: string
  param: string
  item: string
  versions: Versions | undefined
  complete: (row: Row, context: Pick<Context, 'db' | 'services'>) => Promise<Row>
}

const emits = (kind: Kind<any, any>, verb: string): boolean => (kind.events as readonly string[]).includes(verb)

/**
 * Returns builders for the operations of a resource, derived from its kind: ids, paths, actions, statements, events, 404s,
 * ETags and reference checks. Each builder accepts overrides.
 * @param at.path path of the list, such as `/actors`; its first segment is the module of the actions
 * @param at.module module of the actions, if it is not the first path segment
 * @param at.param path parameter with the id; default `<kind>_id`
 * @param at.noun name in operation ids and actions; default the kind's, in pascal case
 * @param at.complete adds computed fields to a row, such as a measured value, before it is returned or emitted; not used for
 *   lists
 * @param at.versions versions of the kind, which create, update and adopt write
 */
export function resource<Row extends KindRow, Event extends string>(
  kind: Kind<Row, Event>,
  at: ResourceAt<Row>,
): ResourceOperations<Row, Event> {
  return new ResourceOperations(kind, at)
}

/** Returns columns with the entry fields of a list as `entry_fields`. */
const withEntryFields = (
  columns: Fragment,
  also: EntryFields[],
  context: Pick<Context, 'caller' | 'project'>,
): Fragment =>
  also.length === 0
    ? columns
    : sql.fragment`${columns}, ${sql.join(
        also.map(({ select }) => select(context)),
        sql.fragment` || `,
      )} as entry_fields`

type ResourceAt<Row> = Pick<ResourceFacts<Row>, 'path' | 'tag'> &
  Partial<Pick<ResourceFacts<Row>, 'module' | 'param' | 'noun' | 'nouns' | 'versions' | 'complete'>>

/** Builders of the operations of a resource. */
export class ResourceOperations<Row extends KindRow, Event extends string> {
  readonly #kind: Kind<Row, Event>
  readonly #facts: ResourceFacts<Row>

  constructor(kind: Kind<Row, Event>, at: ResourceAt<Row>) {
    const param = at.param ?? `${kind.name}_id`
    this.#kind = kind
    this.#facts = {
      path: at.path,
      tag: at.tag,
      module: at.module ?? at.path.split('/')[1],
      noun: at.noun ?? toPascalCase(kind.name),
      nouns: at.nouns ?? toPascalCase(kind.plural),
      words: kind.name.replaceAll('_', ' '),
      param,
      item: `${at.path}/{${param}}`,
      versions: at.versions,
      complete: at.complete ?? (async row => row),
    }
  }

  /** GET of the list: the rows visible to the caller, newest first by default. `visible` replaces policies. */
  list<F extends Filters = Record<never, never>>(
    overrides: Overrides & {
      filters?: F
      /** Schema of an entry, whose fields are columns; default the whole record. */
      entry?: z.ZodObject
      /** Fields of an entry that are not in the record. */
      also?: EntryFields[]
      pageSize?: Operation['pageSize']
      /** The order by fields of the entries, if `order` is given; null for a list of one cell. */
      across?: Operation['across']
      where?: (context: Context<any>) => Conditions | Promise<Conditions>
      visible?: (context: Context<any>) => Fragment
      order?: (context: Context<any>) => Fragment | undefined
      /** Size of the large columns of a row, to cut pages to MAX_PAGE_BYTES. */
      bytes?: Fragment
    } = {},
  ): Operation {
    const kind = this.#kind
    const { path, tag, module, noun, nouns } = this.#facts
    const { filters = {}, entry, also = [], where, visible, order, bytes, ...others } = overrides
    const names = Object.keys(entry?.shape ?? {})
    const record = (entry ?? kind.record) as z.ZodObject
    const shape = Object.assign({}, ...also.map(fields => fields.shape)) as z.ZodRawShape
    const more = Object.keys(shape)
    const present = (row: Row & { entry_fields?: Record<string, unknown> }) => ({
      ...(entry ? pickFields(row, names) : kind.present(row)),
      ...Object.fromEntries(more.map(name => [name, row.entry_fields?.[name] ?? null])),
    })
    return operation({
      id: `list${nouns}`,
      method: 'get',
      path,
      summary: `List ${kind.plural.replaceAll('_', ' ')}`,
      description: `Returns the ${kind.plural.replaceAll('_', ' ')} that the caller may list. Multiple filters are combined with AND.`,
      tag,
      action: `${module}:List${nouns}`,
      lists: kind,
      query: filterSchema(filters),
      answers: {
        200: pageOf(also.length > 0 ? record.extend(shape).meta({ id: entry?.meta()?.id ?? `${noun}Entry` }) : record),
      },
      ...(others as object),
      run: async context =>
        listTable<Row>(visible ? { ...context, visible: () => ({ rows: visible(context), all: false }) } : context, {
          table: kind.table,
          countKept: kind.countKept,
          columns: withEntryFields(entry ? selectList(names) : kind.columns, also, context),
          tags: kind.tags,
          path: kind.path !== undefined,
          filters: [...filterConditions(filters, context.query), ...((await where?.(context)) ?? [])],
          order: order?.(context),
          bytes,
          present,
        }),
    })
  }

  /** GET of one. `present` returns the record with additional fields. */
  get(
    overrides: ItemOverrides<Row> & { present?: (context: QueryContext<undefined, Row>) => Promise<object> } = {},
  ): Operation {
    const kind = this.#kind
    const { tag, module, noun, words, param, item, complete } = this.#facts
    const { present: presentItem, ...more } = overrides
    return itemOperation(kind, {
      id: `get${noun}`,
      method: 'get',
      path: item,
      param,
      summary: `Get ${withArticle(words)}`,
      description: 'The response has an ETag, which a later write can send as If-Match to prevent lost updates.',
      tag,
      action: `${module}:Get${noun}`,
      answers: { 200: kind.record },
      ...(more as object),
      run: async context =>
        presentItem ? presentItem(context as never) : kind.present(await complete(context.resource, context)),
    })
  }

  /**
   * POST to the list: checks the references, inserts the row by `make`, default the fields of the body, and emits the event
   * of a new row.
   */
  create<B extends z.ZodType>(
    overrides: Overrides &
      Pick<Partial<Operation>, 'pathOf' | 'projectOf' | 'gate' | 'consumes' | 'receive'> & {
        body: B
        validate?: (input: ValidateInput<z.output<B>>) => unknown
        warnings?: (input: WarningInput<z.output<B>>) => Problem[]
        prepare?: (context: QueryContext<z.output<B>>) => Promise<unknown>
        check?: (context: QueryContext<z.output<B>> & { project: string }) => Promise<void> | void
        make?: (context: QueryContext<z.output<B>> & { project: string }) => Promise<Row | ExistingRow<Row>>
        /** Returns additional fields of the response, such as a secret. */
        show?: (row: Row, context: QueryContext<z.output<B>>) => object | Promise<object>
      },
  ): Operation {
    const kind = this.#kind
    const { path, tag, module, noun, words, versions, complete } = this.#facts
    const { body, check, make, show, ...more } = overrides
    return operation({
      id: `create${noun}`,
      method: 'post',
      path,
      summary: `Create ${withArticle(words)}`,
      description: 'All IDs in the body must belong to the same project. Returns the new record.',
      tag,
      action: `${module}:Create${noun}`,
      creates: kind,
      body,
      answers: { 201: kind.record },
      ...(more as object),
      async run(context) {
        const { tx, project } = context
        const values = context.body as Values<Row>
        await check?.(context as never)
        await requireReferences(tx, kind, project, values)
        const insert = (): Promise<Row> =>
          versions
            ? versions.insert(tx, { ...values, project_id: project }, authorOfVersion(context))
            : kind.insert(tx, { ...values, ...authorOf(kind, context.caller), project_id: project as never })
        const created = await (make ? make(context as never) : insert())
        if ('existing' in created) return result(200, kind.present(await complete(created.existing as Row, context)))
        const row = await complete(created, context)
        if (emits(kind, 'created')) tx.emit(kind, 'created' as Event, row)
        return { ...kind.present(row), ...(await show?.(row, context as never)) }
      },
    })
  }

  /**
   * PATCH of one, or PUT with `method`: locks the row, merges the fields of the body, and checks references; `change`
   * completes or refuses the result. A body without fields changes nothing and emits no event; with `quiet`, neither does
   * a body that equals the row; the default with versions.
   */
  update<B extends z.ZodType>(
    overrides: ItemOverrides<Row> & {
      body: B
      prepare?: (context: QueryContext<z.output<B>, Row>) => Promise<unknown>
      method?: 'patch' | 'put'
      quiet?: boolean
      check?: (next: Row, context: QueryContext<z.output<B>, Row> & { stored: Row }) => Promise<void> | void
      change?: (
        next: Row,
        context: QueryContext<z.output<B>, Row> & { stored: Row },
        // biome-ignore lint/suspicious/noConfusingVoidType: a change that replaces nothing returns nothing
      ) => Promise<Row | void> | Row | void
      /** Writes the result; by default its columns that differ. */
      write?: (next: Row, context: QueryContext<z.output<B>, Row> & { stored: Row }) => Promise<Row>
      /** Null if `write` emits the event. */
      event?: null
      /** Returns additional fields of the response, such as warnings. */
      show?: (row: Row, context: QueryContext<z.output<B>, Row>) => object | Promise<object>
      /** Hook after the change, in its transaction. */
      changed?: (row: Row, context: QueryContext<z.output<B>, Row> & { stored: Row }) => Promise<void> | void
    },
  ): Operation {
    const kind = this.#kind
    const { tag, module, noun, words, param, item, versions, complete } = this.#facts
    const { body, method = 'patch', quiet, check, change, write, event, show, changed, ...more } = overrides
    return itemOperation(kind, {
      id: `${method === 'put' ? 'replace' : 'update'}${noun}`,
      method,
      path: item,
      param,
      summary: `Update ${withArticle(words)}`,
      description: 'Omitted fields are unchanged.',
      tag,
      action: `${module}:Update${noun}`,
      body,
      answers: { 200: kind.record },
      ...(more as object),
      async run(context) {
        const { tx, resource } = context
        const stored = await kind.lock(tx, resource.id)
        const respond = async (row: Row) => ({ ...kind.present(row), ...(await show?.(row, context as never)) })
        const fields = Object.fromEntries(
          Object.entries((context.body ?? {}) as object).filter(([, value]) => value !== undefined),
        )
        if (Object.keys(fields).length === 0) return respond(await complete(stored, context))
        if (kind.tags && fields.tags) {
          fields.tags = replacedTags(stored.tags ?? {}, fields.tags as Tags)
          context.allowTags(fields.tags as Tags)
        }
        const all = { ...context, stored } as never
        if (versions) requireVersion(stored as never, fields.expected_version as number | undefined)
        let next = { ...stored, ...fields } as Row
        await check?.(next, all)
        await requireReferences(tx, kind, stored.project_id, fields)
        next = (await change?.(next, all)) ?? next
        const differing = kind.changes(stored, next)
        const changes: Values<Row> =
          kind.authored === 'author' ? { ...differing, ...authorColumn(differing, context.caller) } : differing
        if ((quiet ?? versions) && Object.keys(changes).length === 0) return respond(await complete(stored, context))
        const update = (): Promise<Row> =>
          versions
            ? versions.change(tx, stored, differing, authorOfVersion(context))
            : kind.update(tx, stored.id, changes)
        const row = await complete(await (write ? write(next, all) : update()), context)
        if (event !== null && emits(kind, 'updated')) tx.emit(kind, 'updated' as Event, row)
        await changed?.(row, all)
        return respond(row)
      },
    })
  }

  /**
   * DELETE of one, under its lock. `check` and then hooks of later modules may refuse it. With `dependents`, referencing
   * rows refuse it with that code, and `force=true` deletes them too.
   */
  remove(
    overrides: ItemOverrides<Row> & {
      check?: (row: Row, context: QueryContext<undefined, Row>) => Promise<void> | void
      dependents?: ErrorCode
      removed?: (row: Row, context: QueryContext<undefined, Row>) => Promise<void> | void
    } = {},
  ): Operation {
    const kind = this.#kind
    const { tag, module, noun, words, param, item, complete } = this.#facts
    const { check, dependents, removed, raises = [], ...more } = overrides
    return itemOperation(kind, {
      id: `delete${noun}`,
      method: 'delete',
      path: item,
      param,
      summary: `Delete ${withArticle(words)}`,
      description: dependents
        ? 'Refused while other resources reference it, unless `force` deletes them too. Cannot be undone.'
        : 'The deletion cannot be undone.',
      tag,
      action: `${module}:Delete${noun}`,
      ...(dependents ? { query: ForceQuery } : {}),
      answers: { 204: null },
      raises: [...raises, ...(dependents ? [dependents] : [])],
      ...(more as object),
      async run(context) {
        const { tx, resource, services } = context
        const row = await kind.lock(tx, resource.id)
        await check?.(row, context as never)
        await runDeleteHooks(tx, services, kind, row)
        if (dependents) {
          const { force = false } = context.query as { force?: boolean }
          await refuseDependents(tx, kind, row.id, { force, code: dependents })
        }
        await removeRow(tx, kind, await complete(row, context))
        await removed?.(row, context as never)
      },
    })
  }

  /** POST to `<item>/adopt`, for kinds with authors: makes the caller the author. Default: updates the column. */
  adopt(
    overrides: Overrides & { adopt?: (stored: Row, context: QueryContext<undefined, Row>) => Promise<Row> } = {},
  ): Operation {
    const kind = this.#kind
    const { tag, module, noun, words, param, item, versions, complete } = this.#facts
    const { adopt, ...more } = overrides
    return itemOperation(kind, {
      id: `adopt${noun}`,
      method: 'post',
      path: `${item}/adopt`,
      param,
      summary: `Become the author of ${withArticle(words)}`,
      description:
        'The author is the principal that last changed the behaviour of the definition. Its calls on the platform are limited to the permissions that the author has at that time. Only the author changes; a versioned definition gets a new version.',
      tag,
      action: `${module}:Update${noun}`,
      answers: { 200: kind.record },
      ...(more as object),
      async run(context) {
        const { tx, resource, caller } = context
        const stored = await kind.lock(tx, resource.id)
        const row: Row = await (adopt?.(stored, context as never) ??
          versions?.adopt(tx, stored, caller) ??
          kind.update(tx, stored.id, { author: principalRecord(caller) } as never))
        if (emits(kind, 'updated')) tx.emit(kind, 'updated' as Event, await complete(row, context))
        return kind.present(await complete(row, context))
      },
    })
  }

  /** GET of the list of versions, of one and of a comparison of two, and POST to `<version>/restore`. */
  versions(restore: Restore<Row> = {}): Operation[] {
    const { path, tag, versions } = this.#facts
    return versionOperations(versions as Versions, { path, tag }, restore)
  }

  /** GET, PUT and PATCH of the tags. Default: updates the column. */
  tags(
    overrides: {
      set?: (tx: Context['tx'], row: Row, tags: Tags, caller: Caller) => Promise<Row>
      event?: Event | null
      onChange?: (tx: Context['tx'], row: Row) => void | Promise<void>
    } = {},
  ): Operation[] {
    const kind = this.#kind
    const { tag, module, noun, param, item } = this.#facts
    const { set, event, onChange } = overrides
    return tagOperations(kind, {
      path: item,
      param,
      noun,
      tag,
      read: `${module}:Get${noun}`,
      write: `${module}:Update${noun}`,
      setTags: set ?? ((tx, row, tags) => kind.update(tx, row.id, { tags } as Values<Row>)),
      event,
      onChange,
    })
  }

  /** POST to `<item>/<name>`. */
  action<Q extends z.ZodType | undefined = undefined, B extends z.ZodType | undefined = undefined>(
    name: string,
    overrides: Partial<OperationBase<Q, B>> &
      Pick<OperationBase<Q, B>, 'summary' | 'answers'> & {
        find?: Kind<Row>['find']
        joined?: boolean
        decide?: (caller: Caller, row: Row, surface: string) => GateVerdict
        decision?(context: ActionContext<Q, B, Row>): Decision
        run(context: ActionContext<Q, B, Row>): Promise<unknown>
        again?(context: ActionContext<Q, B, Row>, made: Made): Promise<unknown>
      },
  ): Operation {
    const kind = this.#kind
    const { tag, module, noun, param, item } = this.#facts
    const verb = toCamelCase(name)
    return itemOperation(kind, {
      id: `${verb}${noun}`,
      method: 'post',
      path: `${item}/${name}`,
      param,
      tag,
      action: `${module}:${toPascalCase(verb)}${noun}`,
      ...overrides,
    } as never)
  }
}

/** Returns the author and label of the version that a body writes. */
const authorOfVersion = ({ caller, body }: Pick<Context<any, any>, 'caller' | 'body'>) =>
  versionAuthor(caller, (body as { version_label?: string }).version_label)

type ActionContext<Q, B, Row> = Context<
  Q extends z.ZodType ? z.output<Q> : Record<string, never>,
  B extends z.ZodType ? z.output<B> : undefined,
  Row
>

const ForceQuery = filterSchema({
  force: {
    schema: booleanQuery.optional().describe('Whether to also delete the resources that reference it, if possible'),
    where: () => null,
  },
})
