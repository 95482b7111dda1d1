import type { z } from 'zod'
import type { Fragment } from '../db/sql.ts'
import { type Caller, principalRecord } from '../iam/caller.ts'
import { authorColumn, authorOf } from './authors.ts'
import { refuseDependents, removeRow } from './dependents.ts'
import type { ErrorCode } from './errors.ts'
import { type Filters, filterConditions, filterSchema } from './filters.ts'
import type { Made } from './idempotency.ts'
import { type Kind, type KindRow, pickFields, selectList, type Values } from './kind.ts'
import { booleanQuery, listTable, pageOf } from './lists.ts'
import {
  type Context,
  type GateVerdict,
  itemOperation,
  type Operation,
  type OperationBase,
  operation,
  result,
} from './operation.ts'
import type { Tags } from './record.ts'
import { requireReferences } from './references.ts'
import { replacedTags, tagOperations } from './tags.ts'

/** What an operation may declare otherwise than it follows from the kind. */
type Overrides = Partial<Pick<Operation, 'id' | 'path' | 'action' | 'summary'>> &
  Pick<
    Partial<Operation>,
    | 'description'
    | 'command'
    | 'checkedBy'
    | 'alsoActions'
    | 'gate'
    | 'admit'
    | 'bodyLimit'
    | 'bodyTimeMs'
    | 'bodyOptional'
    | 'internal'
    | 'mcp'
    | 'granted'
    | 'secretAnswer'
  > & {
    raises?: ErrorCode[]
    answers?: Operation['answers']
  }

/** The same of an operation on one row, which may be its owner's. */
type ItemOverrides<Row> = Overrides & { decide?: (caller: Caller, row: Row, surface: string) => GateVerdict }

type QueryContext<B = undefined, R = undefined> = Context<Record<string, never>, B, R>

/** A row that was there already, for a create that finds: answered with 200 and without an event. */
export type ExistingRow<Row> = { existing: Row }

/** `memory_store` as `MemoryStore`. */
export const toPascalCase = (name: string): string =>
  name.replace(/(^|_)([a-z])/g, (_match, _gap, letter: string) => letter.toUpperCase())
const camel = (name: string): string => name.replace(/[-_]([a-z])/g, (_match, letter: string) => letter.toUpperCase())
const withArticle = (noun: string): string => `${/^[aeio]/.test(noun) ? 'an' : 'a'} ${noun}`

/**
 * The operations of a resource, as they follow from its kind: ids, paths, actions, statements, events, 404s, ETags,
 * checks of references. A declaration says what differs.
 * @param at.path path of the list, such as `/actors`; its first segment is the module of the actions
 * @param at.module module of the actions, where it is another one
 * @param at.param path parameter that holds the id; default `<kind>_id`
 * @param at.noun name in operation ids and actions; default the kind's, in pascal case
 * @param at.complete adds what the record of one row shows beside its columns, such as a measured value, before it is
 *   answered or emitted; lists show the row as it is
 */
export function resource<Row extends KindRow, Event extends string>(
  kind: Kind<Row, Event>,
  at: {
    path: string
    tag: string
    module?: string
    param?: string
    noun?: string
    nouns?: string
    complete?: (row: Row, context: Pick<Context, 'db' | 'services'>) => Promise<Row>
  },
) {
  const { path, tag, complete = async row => row } = at
  const module = at.module ?? path.split('/')[1]
  const noun = at.noun ?? toPascalCase(kind.name)
  const nouns = at.nouns ?? toPascalCase(kind.plural)
  const words = kind.name.replaceAll('_', ' ')
  const param = at.param ?? `${kind.name}_id`
  const item = `${path}/{${param}}`
  const emits = (verb: string): boolean => (kind.events as readonly string[]).includes(verb)
  const present = (row: Row): object => kind.present(row)

  return {
    /**
     * GET of the list: rows the caller may see, newest first unless `order` says otherwise. `visible` says which rows
     * these are where policies do not.
     */
    list<F extends Filters = Record<never, never>>(
      overrides: Overrides & {
        filters?: F
        /** What the list shows of a record, all of it columns; default the whole record. */
        entry?: z.ZodObject
        pageSize?: Operation['pageSize']
        where?: (context: Context<any>) => (Fragment | null | undefined | false)[]
        visible?: (context: Context<any>) => Fragment
        order?: (context: Context<any>) => Fragment | undefined
        /** Bytes of what is large in a row: a page is cut to what one answer may show. */
        bytes?: Fragment
      } = {},
    ): Operation {
      const { filters = {}, entry, where, visible, order, bytes, ...more } = overrides
      const names = Object.keys(entry?.shape ?? {})
      return operation({
        id: `list${nouns}`,
        method: 'get',
        path,
        summary: `List ${kind.plural.replaceAll('_', ' ')}`,
        description: `Shows the ${kind.plural.replaceAll('_', ' ')} that the caller may list; of several filters all must hold.`,
        tag,
        action: `${module}:List${nouns}`,
        lists: kind,
        query: filterSchema(filters),
        answers: { 200: pageOf(entry ?? kind.record) },
        ...(more as object),
        run: context =>
          listTable<Row>(visible ? { ...context, visible: () => ({ rows: visible(context), all: false }) } : context, {
            table: kind.table,
            countKept: kind.countKept,
            columns: entry ? selectList(names) : kind.columns,
            tags: kind.tags,
            path: kind.path !== undefined,
            filters: [...filterConditions(filters, context.query), ...(where?.(context) ?? [])],
            order: order?.(context),
            bytes,
            present: entry ? row => pickFields(row, names) : present,
          }),
      })
    },

    /** GET of one. `present` shows it with more than its record. */
    get(
      overrides: ItemOverrides<Row> & { present?: (context: QueryContext<undefined, Row>) => Promise<object> } = {},
    ): Operation {
      const { present: shown, ...more } = overrides
      return itemOperation(kind, {
        id: `get${noun}`,
        method: 'get',
        path: item,
        param,
        summary: `Read ${withArticle(words)}`,
        description:
          'Answers the record as it is now, with the ETag by which a later write can say what it was based on.',
        tag,
        action: `${module}:Get${noun}`,
        answers: { 200: kind.record },
        ...(more as object),
        run: async context => (shown ? shown(context as never) : present(await complete(context.resource, context))),
      })
    },

    /**
     * POST to the list. `make` writes the row, by default what the body says; what it refers to is checked before. The
     * event of a new row is emitted here.
     */
    create<B extends z.ZodType>(
      overrides: Overrides &
        Pick<Partial<Operation>, 'pathOf' | 'projectOf' | 'gate' | 'consumes' | 'receive'> & {
          body: B
          check?: (context: QueryContext<z.output<B>> & { project: string }) => Promise<void> | void
          make?: (context: QueryContext<z.output<B>> & { project: string }) => Promise<Row | ExistingRow<Row>>
          /** What the answer shows beside the record, such as a secret. */
          show?: (row: Row, context: QueryContext<z.output<B>>) => object | Promise<object>
        },
    ): Operation {
      const { body, check, make, show, ...more } = overrides
      return operation({
        id: `create${noun}`,
        method: 'post',
        path,
        summary: `Create ${withArticle(words)}`,
        description: 'Whatever the body names by its id must be in the same project. Answers the new record.',
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
          const made = make
            ? await make(context as never)
            : await kind.insert(tx, { ...values, ...authorOf(kind, context.caller), project_id: project as never })
          if ('existing' in made) return result(200, present(await complete(made.existing as Row, context)))
          const row = await complete(made, context)
          if (emits('created')) tx.emit(kind, 'created' as Event, row)
          return { ...present(row), ...(await show?.(row, context as never)) }
        },
      })
    },

    /**
     * PATCH of one, or PUT with `method`. The row is locked, the fields given laid over it, references checked; `change`
     * completes or refuses the result. A body without fields changes nothing and is no event, nor with
     * `quiet` one that leaves the row as it was.
     */
    update<B extends z.ZodType>(
      overrides: ItemOverrides<Row> & {
        body: B
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
        /** Null where `write` tells of the change itself. */
        event?: null
        /** What the answer shows beside the record, such as warnings. */
        show?: (row: Row, context: QueryContext<z.output<B>, Row>) => object | Promise<object>
        /** What else follows from the change, in its transaction. */
        changed?: (row: Row, context: QueryContext<z.output<B>, Row> & { stored: Row }) => Promise<void> | void
      },
    ): Operation {
      const { body, method = 'patch', quiet = false, check, change, write, event, show, changed, ...more } = overrides
      return itemOperation(kind, {
        id: `${method === 'put' ? 'replace' : 'update'}${noun}`,
        method,
        path: item,
        param,
        summary: `Change ${withArticle(words)}`,
        description: 'Fields that are left out keep their values; a body without fields changes nothing.',
        tag,
        action: `${module}:Update${noun}`,
        body,
        answers: { 200: kind.record },
        ...(more as object),
        async run(context) {
          const { tx, resource } = context
          const stored = await kind.lock(tx, resource.id)
          const shown = async (row: Row) => ({ ...present(row), ...(await show?.(row, context as never)) })
          const given = Object.fromEntries(
            Object.entries((context.body ?? {}) as object).filter(([, value]) => value !== undefined),
          )
          if (Object.keys(given).length === 0) return shown(await complete(stored, context))
          if (kind.tags && given.tags) {
            given.tags = replacedTags(stored.tags ?? {}, given.tags as Tags)
            context.allowTags(given.tags as Tags)
          }
          const all = { ...context, stored } as never
          let next = { ...stored, ...given } as Row
          await check?.(next, all)
          await requireReferences(tx, kind, stored.project_id, given)
          next = (await change?.(next, all)) ?? next
          const differing = kind.changes(stored, next)
          const changes: Values<Row> =
            kind.authored === 'author' ? { ...differing, ...authorColumn(differing, context.caller) } : differing
          if (quiet && Object.keys(changes).length === 0) return shown(await complete(stored, context))
          const row = await complete(
            write ? await write(next, all) : await kind.update(tx, stored.id, changes),
            context,
          )
          if (event !== null && emits('updated')) tx.emit(kind, 'updated' as Event, row)
          await changed?.(row, all)
          return shown(row)
        },
      })
    },

    /**
     * DELETE of one, under its lock. `check` refuses it; with `dependents` what refers to it holds it under that code, and
     * `force=true` deletes that too.
     */
    remove(
      overrides: ItemOverrides<Row> & {
        check?: (row: Row, context: QueryContext<undefined, Row>) => Promise<void> | void
        dependents?: ErrorCode
        removed?: (row: Row, context: QueryContext<undefined, Row>) => Promise<void> | void
      } = {},
    ): Operation {
      const { check, dependents, removed, raises = [], ...more } = overrides
      return itemOperation(kind, {
        id: `delete${noun}`,
        method: 'delete',
        path: item,
        param,
        summary: `Delete ${withArticle(words)}`,
        description: dependents
          ? 'Refused while other resources refer to it, unless `force` deletes those too. Cannot be undone.'
          : 'Cannot be undone: from then on its id names nothing.',
        tag,
        action: `${module}:Delete${noun}`,
        ...(dependents ? { query: ForceQuery } : {}),
        answers: { 204: null },
        raises: [...raises, ...(dependents ? [dependents] : [])],
        ...(more as object),
        async run(context) {
          const { tx, resource } = context
          const row = await kind.lock(tx, resource.id)
          await check?.(row, context as never)
          if (dependents) {
            const { force = false } = context.query as { force?: boolean }
            await refuseDependents(tx, kind, row.id, { force, code: dependents })
          }
          await removeRow(tx, kind, await complete(row, context))
          await removed?.(row, context as never)
        },
      })
    },

    /**
     * POST to `<item>/adopt`, of a kind that keeps authors: the caller becomes the author. `adopt` writes it; by default it is
     * a column.
     */
    adopt(
      overrides: Overrides & { adopt?: (stored: Row, context: QueryContext<undefined, Row>) => Promise<Row> } = {},
    ): Operation {
      const { adopt, ...more } = overrides
      return itemOperation(kind, {
        id: `adopt${noun}`,
        method: 'post',
        path: `${item}/adopt`,
        param,
        summary: `Become the author of ${withArticle(words)}`,
        description:
          'What a definition does on the platform is bounded by the rights that its author has at that moment: the principal of the last write that changed what it does. Nothing else changes; where a definition has versions, the next one says so.',
        tag,
        action: `${module}:Update${noun}`,
        answers: { 200: kind.record },
        ...(more as object),
        async run(context) {
          const { tx, resource, caller } = context
          const stored = await kind.lock(tx, resource.id)
          const row = await (adopt?.(stored, context as never) ??
            kind.update(tx, stored.id, { author: principalRecord(caller) } as never))
          if (emits('updated')) tx.emit(kind, 'updated' as Event, await complete(row, context))
          return present(await complete(row, context))
        },
      })
    },

    /** GET, PUT and PATCH of the tags; by default they are a column. */
    tags(
      overrides: {
        set?: (tx: Context['tx'], row: Row, tags: Tags, caller: Caller) => Promise<Row>
        event?: Event | null
        onChange?: (tx: Context['tx'], row: Row) => void | Promise<void>
      } = {},
    ): Operation[] {
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
    },

    /** POST to `<item>/<name>`: what else can be done with one. */
    action<Q extends z.ZodType | undefined = undefined, B extends z.ZodType | undefined = undefined>(
      name: string,
      overrides: Partial<OperationBase<Q, B>> &
        Pick<OperationBase<Q, B>, 'summary' | 'answers'> & {
          find?: Kind<Row>['find']
          joined?: boolean
          decide?: (caller: Caller, row: Row, surface: string) => GateVerdict
          run(context: ActionContext<Q, B, Row>): Promise<unknown>
          again?(context: ActionContext<Q, B, Row>, made: Made): Promise<unknown>
        },
    ): Operation {
      const verb = camel(name)
      return itemOperation(kind, {
        id: `${verb}${noun}`,
        method: 'post',
        path: `${item}/${name}`,
        param,
        tag,
        action: `${module}:${toPascalCase(verb)}${noun}`,
        ...overrides,
      } as never)
    },
  }
}

type ActionContext<Q, B, Row> = Context<
  Q extends z.ZodType ? z.output<Q> : Record<string, never>,
  B extends z.ZodType ? z.output<B> : undefined,
  Row
>

const ForceQuery = filterSchema({
  force: {
    schema: booleanQuery.optional().describe('Delete what refers to it too, as far as it may be deleted'),
    where: () => null,
  },
})
