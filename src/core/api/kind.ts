import { isDeepStrictEqual } from 'node:util'
import { UniqueIntegrityConstraintViolationError, type ValueExpression } from 'slonik'
import { z } from 'zod'
import type { EventSource } from '../db/events.ts'
import { type Fragment, type Queryable, sql } from '../db/sql.ts'
import type { Tx } from '../db/writer.ts'
import { declarations } from '../declarations.ts'
import { type ErrorCode, raise } from './errors.ts'
import { newId } from './ids.ts'

/** How a row of one kind names a row of another. */
export type Reference = {
  kind: string
  column: string
  /** The column is a text[] of ids. */
  many?: boolean
  /** Text expression over the row: the wire's field that names the id given. Default: the column. */
  field?: (id: Fragment) => Fragment
  /** What a refused delete counts such rows under, null for nothing. Default: the plural of their kind. */
  counted?: string | null
  /** Which rows refer so, as a condition on their columns. Default: all. */
  where?: Fragment
  /** A subquery of the ids of rows that may name one of the targets given, where the column has no index. Default: all. */
  among?: (targets: Fragment) => Fragment
  /** A target may be of another project that grants it. Such a row does not hold it and does not go with it. */
  grantable?: boolean
  /** Rows with `force` are left as they are when the target goes: they outlive what they name. */
  stays?: boolean
  /** What becomes of rows with `force` or `follow` in place of being deleted. */
  letGo?: (tx: Tx, ids: readonly string[]) => Promise<unknown>
  /**
   * `block`: the target cannot be deleted while this row lives, nor by force. `force`: blocks unless forced, then deleted
   * with it. `follow`: deleted with it, forced or not; counted beside what blocks.
   */
  on_delete: 'block' | 'force' | 'follow' | 'cascade' | 'null'
}

/**
 * What a resource is to the rest of the application: how to find and write a row, which project it belongs to, how
 * policies name it, what it refers to, which events it emits. Declared once by the module that owns it; known to core as
 * data.
 */
export type Kind<Row extends KindRow = KindRow, Event extends string = string> = EventSource<Row, Event> & {
  prefix: string
  table: string
  /** Global resources have `*` as project. */
  global: boolean
  /** Carries tags that policy conditions see. */
  tags: boolean
  /** The code that answers a path whose id names nothing. */
  notFound: ErrorCode
  /** The code that answers a body that names nothing. */
  missing: ErrorCode
  /** Rows that a project shows as its dependents when it is deleted; false for what goes silently. */
  counted: boolean
  /** Triggers keep the number of its rows by project in `row_counts`. */
  countKept: boolean
  /** Column that has the author of its rows, which act when they are used; null for other kinds. */
  authored: AuthorColumn | null
  /** Ids that were not made by `newId`: rows that ship with the deployment. */
  fixedIds: readonly string[]
  references: readonly Reference[]
  /** Fields that a table of its rows shows, at most six; null for those that tell any records apart. */
  listed: readonly string[] | null
  /** Select list of a row over the alias `t`. */
  columns: Fragment
  /** The record's schema. */
  record: z.ZodType
  row: z.ZodType<Row>
  /** Tag of statements that return rows of the kind. */
  sql: ReturnType<typeof sql.type<z.ZodType<Row>>>
  /** Reads one row by id, in the shape `present` takes. `lock` takes the row's lock: FOR UPDATE unless the kind is `shared`. */
  find(db: Queryable, id: string, lock?: boolean): Promise<Row | null>
  /** The row under its lock. Raises `notFound` when it is gone. */
  lock(db: Queryable, id: string): Promise<Row>
  /** A row of a project, kept from being deleted until the transaction ends (FOR KEY SHARE); null when there is none. */
  reference(db: Queryable, id: string, projectId: string | null): Promise<Row | null>
  /** Adds a row, with a new id unless one is given. Raises the code of a unique index that refuses it. */
  insert(db: Queryable, values: Values<Row>): Promise<Row>
  /** The same, with null in place of a refusal by a unique index; the transaction goes on. */
  insertUnlessTaken(db: Queryable, values: Values<Row>): Promise<Row | null>
  /** Writes the columns given and `updated_at`. The caller holds the row. */
  update(db: Queryable, id: string, values: Values<Row>): Promise<Row>
  /** Deletes a row; null when it was gone. */
  delete(db: Queryable, id: string): Promise<Row | null>
  /** The columns of a row that differ from another state of it. */
  changes(before: Row, after: Row): Values<Row>
  /** The normalized path under which policies name the row too; null while it has none. */
  path?: (row: Row) => string | null
  /** Policies name a row by its parent too: either name may allow, either may deny. */
  parent?: Parent
  /** Resource names are those of the parent when the kind has none of its own (deliveries: their webhook). */
  authorize?: (row: Row) => NamedRow
  /** Deletes one row with what follows from it, its delete event first of all; for forced deletes of what it names. */
  remove?: (tx: Tx, row: Row) => Promise<void>
  /** The same for many rows at once, of kinds without a delete event. */
  removeAll?: (tx: Tx, ids: readonly string[]) => Promise<void>
}

/** The kind of a row's parent, and the column that has its id. */
export type Parent = { kind: string; column: string }

/** What policies name a row by in place of itself: its parent, whose tags count where they are given. */
export type NamedRow = { type: string; id: string; tags?: Record<string, string> | null }

/** Definitions keep an author; what runs by itself acts as one. */
type AuthorColumn = 'author' | 'authority'

export type KindRow = { id: string; project_id: string | null; tags?: Record<string, string> | null }

/** Columns of a row to write. */
export type Values<Row> = { [K in keyof Row]?: Row[K] }

/** Every kind of the process. */
export const kinds = declarations<Kind<any>>('kind', ({ name }) => name)

type Naming<Row extends KindRow, Event extends string> = {
  name: string
  plural?: string
  prefix: string
  table: string
  global?: boolean
  tags?: boolean
  notFound?: ErrorCode
  missing?: ErrorCode
  counted?: boolean
  countKept?: boolean
  authored?: AuthorColumn
  fixedIds?: readonly string[]
  /**
   * Transactions refer to its rows all the time, as all that write in a project do. They would starve a FOR UPDATE, so its
   * lock is FOR NO KEY UPDATE: against other changes, not against references.
   */
  shared?: boolean
  references?: readonly Reference[]
  listed?: readonly string[]
  events?: readonly Event[]
  eventNames?: EventSource<Row, Event>['eventNames']
  eventAliases?: EventSource<Row, Event>['eventAliases']
  eventNotes?: string
  /** What an insert or update raises that a unique index of this name refuses, given the values written. */
  unique?: Record<string, (values: Values<Row>) => never>
  find?: Kind<Row>['find']
  /** Takes a lock that comes before that of the row, such as the one of what contains it. */
  lockFirst?: (db: Queryable, id: string) => Promise<unknown>
  path?: (row: Row) => string | null
  parent?: Parent & { column: keyof Row }
  authorize?: (row: Row) => NamedRow
  remove?: (tx: Tx, row: Row) => Promise<void>
  removeAll?: Kind<Row>['removeAll']
}

type Show<T> = { [K in keyof T]: T[K] }

/** A row is its record with the hidden columns. */
type RowOf<R extends z.ZodObject, H extends z.ZodRawShape> =
  Show<z.output<R> & { [K in keyof H]: z.output<H[K]> }> extends infer Row extends KindRow ? Row : never

type DeclareKind = {
  /**
   * Declares a kind by the schema of its record. Columns that the wire does not show are `hidden`; fields that are no
   * columns have their select expression over the alias `t` in `computed`.
   */
  <R extends z.ZodObject, H extends z.ZodRawShape = {}, const Event extends string = never>(
    declaration: Naming<RowOf<R, H>, Event> & {
      record: R
      hidden?: H
      computed?: { [K in keyof (R['shape'] & H)]?: Fragment }
      present?: (row: RowOf<R, H>) => object
    },
  ): Kind<RowOf<R, H>, Event> & { row: z.ZodObject<Show<R['shape'] & H>> }
  /** Declares a kind whose record is more than a choice of columns: rows are what `columns` selects, default all. */
  <Row extends KindRow, const Event extends string = never>(
    declaration: Naming<Row, Event> & {
      row: z.ZodType<Row>
      columns?: Fragment
      record?: z.ZodType
      present: (row: Row) => object
    },
  ): Kind<Row, Event>
}

type AnyDeclaration = Naming<any, any> & {
  record?: z.ZodObject
  row?: z.ZodType
  hidden?: z.ZodRawShape
  computed?: Record<string, Fragment | undefined>
  columns?: Fragment
  present?: (row: any) => object
}

export const kind: DeclareKind = ((declaration: AnyDeclaration): Kind<any, any> => {
  const { hidden = {}, computed = {}, unique = {} } = declaration
  const record = declaration.row ? undefined : declaration.record
  const shown = Object.keys(record?.shape ?? {})
  const row = record ? record.extend(hidden) : (declaration.row as z.ZodType)
  const columns =
    declaration.columns ?? (record ? selectList([...shown, ...Object.keys(hidden)], computed) : sql.fragment`t.*`)
  const table = sql.identifier([declaration.table])
  const typed = sql.type(row)
  const encoders = row instanceof z.ZodObject ? encodersOf(row.shape) : {}
  const forUpdate = declaration.shared ? sql.fragment`for no key update of t` : sql.fragment`for update of t`
  const touched = 'updated_at' in encoders ? [sql.fragment`updated_at = now()`] : []
  const given = (values: Values<any>) =>
    Object.entries(values).filter(([name, value]) => value !== undefined && name in encoders && !(name in computed))
  const encoded = ([name, value]: [string, unknown]): ValueExpression => encoders[name](value)
  const insertion = (values: Values<any>, conflict: Fragment) => {
    const entries = given({ id: newId(declaration.prefix), ...values })
    return typed`
      insert into ${table} as t (${list(entries.map(([name]) => sql.identifier([name])))})
      values (${list(entries.map(encoded))}) ${conflict} returning ${columns}`
  }
  const refused = (error: unknown, values: Values<any>): never => {
    if (error instanceof UniqueIntegrityConstraintViolationError) unique[error.constraint ?? '']?.(values)
    throw error
  }
  const fixed = [...Object.keys(computed), 'id', 'project_id', 'created_at', 'updated_at']
  const writable = Object.keys(encoders).filter(name => !fixed.includes(name))
  const made: Kind<any, any> = {
    name: declaration.name,
    plural: declaration.plural ?? `${declaration.name}s`,
    prefix: declaration.prefix,
    table: declaration.table,
    global: declaration.global ?? false,
    tags: declaration.tags ?? shown.includes('tags'),
    notFound: declaration.notFound ?? 'RESOURCE_NOT_FOUND',
    missing: declaration.missing ?? 'RESOURCE_NOT_FOUND',
    counted: declaration.counted ?? true,
    countKept: declaration.countKept ?? false,
    authored: declaration.authored ?? ('author' in hidden ? 'author' : null),
    fixedIds: declaration.fixedIds ?? [],
    references: declaration.references ?? [],
    listed: declaration.listed ?? null,
    events: declaration.events ?? [],
    eventNames: declaration.eventNames ?? {},
    eventAliases: declaration.eventAliases ?? {},
    eventNotes: declaration.eventNotes,
    columns,
    record: declaration.record ?? row,
    row,
    sql: typed,
    find:
      declaration.find ??
      (async (db, id, lock = false) => {
        if (lock) await declaration.lockFirst?.(db, id)
        return db.maybeOne(
          typed`select ${columns} from ${table} t where t.id = ${id} ${lock ? forUpdate : sql.fragment``}`,
        )
      }),
    async lock(db, id) {
      return (await made.find(db, id, true)) ?? raise(made.notFound, { meta: { id } })
    },
    reference: async (db, id, projectId) =>
      isIdOf(made, id)
        ? db.maybeOne(
            typed`select ${columns} from ${table} t where t.id = ${id} and ${inProject(made, projectId)} for key share of t`,
          )
        : null,
    async insert(db, values) {
      try {
        return await db.one(insertion(values, sql.fragment``))
      } catch (error) {
        return refused(error, values)
      }
    },
    insertUnlessTaken: (db, values) => db.maybeOne(insertion(values, sql.fragment`on conflict do nothing`)),
    async update(db, id, values) {
      const sets = given(values).map(entry => sql.fragment`${sql.identifier([entry[0]])} = ${encoded(entry)}`)
      try {
        return await db.one(
          typed`update ${table} as t set ${list([...sets, ...touched])} where t.id = ${id} returning ${columns}`,
        )
      } catch (error) {
        return refused(error, values)
      }
    },
    delete: (db, id) => db.maybeOne(typed`delete from ${table} as t where t.id = ${id} returning ${columns}`),
    changes: (before, after) =>
      Object.fromEntries(
        writable.flatMap(name => (isDeepStrictEqual(before[name], after[name]) ? [] : [[name, after[name]]])),
      ),
    present: declaration.present ?? (row => pickFields(row, shown)),
    path: declaration.path,
    parent: declaration.parent,
    authorize: declaration.authorize,
    remove: declaration.remove,
    removeAll: declaration.removeAll,
  }
  return made
}) as never

/** Some fields of a row, in the order of their names. */
export function pickFields(row: Record<string, any>, names: readonly string[]): object {
  const record: Record<string, unknown> = {}
  for (const name of names) record[name] = row[name]
  return record
}

/** The condition that a row is of a project; rows of the deployment are of every one. */
export const inProject = ({ global }: Pick<Kind, 'global'>, projectId: string | null): Fragment =>
  global ? sql.fragment`true` : sql.fragment`t.project_id = ${projectId}`

const list = (parts: readonly ValueExpression[]) => sql.join(parts, sql.fragment`, `)

/** Columns over the alias `t`, those in `computed` by their expression. */
export const selectList = (names: readonly string[], computed: Record<string, Fragment | undefined> = {}): Fragment =>
  sql.fragment`${list(
    names.map(name => {
      const expression = computed[name]
      return expression ? sql.fragment`${expression} as ${sql.identifier([name])}` : sql.identifier(['t', name])
    }),
  )}`

type Encoder = (value: unknown) => ValueExpression

/**
 * How the values of each column are sent: arrays of texts and numbers as such, other objects as their JSON text, of which
 * the column makes json or jsonb.
 */
const encodersOf = (shape: z.ZodRawShape): Record<string, Encoder> =>
  Object.fromEntries(Object.entries(shape).map(([name, field]) => [name, encoderOf(field as z.ZodType)]))

const scalars = new Set(['string', 'number', 'int', 'boolean', 'enum', 'literal', 'bigint', 'template_literal'])

function encoderOf(field: z.ZodType): Encoder {
  const type = bare(field)
  const { type: name } = type.def
  if (scalars.has(name)) return value => value as ValueExpression
  const element = name === 'array' ? bare((type as z.ZodArray).element as z.ZodType).def.type : undefined
  if (element && scalars.has(element)) {
    const column = element === 'number' ? 'float8' : 'text'
    return value => (value === null ? null : sql.array(value as never[], column))
  }
  return value => (value === null ? null : Buffer.isBuffer(value) ? sql.binary(value) : JSON.stringify(value))
}

/** The type of a field without what makes it optional, nullable or defaulted. */
function bare(field: z.ZodType): z.ZodType {
  const def = field.def as { innerType?: z.ZodType; out?: z.ZodType }
  const inner = def.innerType ?? def.out
  return inner ? bare(inner) : field
}

/** A type of resource that has no rows: policies name all of it, `*`. */
export const kindWithoutRows = (name: string): Kind => ({
  ...kind({ name, plural: name, prefix: '', table: '', counted: false, row: z.custom<KindRow>(), present: row => row }),
  find: async () => null,
})

const ID = /^[a-z]+(?:_[a-z]+)*_[0-9a-hjkmnp-tv-z]{26}$/

/** Whether a string can be an id of a kind; anything else is answered like an id that does not exist, without a query. */
export const isIdOf = (target: Pick<Kind, 'prefix' | 'fixedIds'>, id: string): boolean =>
  (ID.test(id) && id.startsWith(`${target.prefix}_`) && id.length === target.prefix.length + 27) ||
  target.fixedIds.includes(id)

/** The name policies use: `srn:<project>:<type>:<id>`. */
export const srn = (projectId: string | null, type: string, id: string): string =>
  `srn:${projectId ?? '*'}:${type}:${id}`
