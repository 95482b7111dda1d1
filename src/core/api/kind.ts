import { isDeepStrictEqual } from 'node:util'
import { UniqueIntegrityConstraintViolationError, type ValueExpression } from 'slonik'
import { z } from 'zod'
import { declarations } from '../base/declarations.ts'
import { type ErrorCode, raise } from '../base/errors.ts'
import { isId, newId } from '../base/ids.ts'
import { type Fragment, type Queryable, sql } from '../db/sql.ts'
import type { EventSource } from '../writes/events.ts'
import type { Tx } from '../writes/writer.ts'

/** A reference from rows of one kind to rows of another. */
export type Reference = {
  kind: string
  column: string
  /** The column is a text[] of ids. */
  many?: boolean
  /** Text expression over the row: the wire field that contains the id. Default: the column. */
  field?: (id: Fragment) => Fragment
  /** Name under which a refused delete counts such rows; null: not counted. Default: the plural of their kind. */
  counted?: string | null
  /** Condition on the columns of referencing rows. Default: all rows. */
  where?: Fragment
  /** Condition that a row references one of the targets, if the ids are in another table. Default: by the column. */
  condition?: (targets: Fragment) => Fragment
  /** Subquery of the ids of rows that may reference one of the targets, if the column has no index. Default: all rows. */
  among?: (targets: Fragment) => Fragment
  /** Whether the target may belong to another project that grants it. Such a row does not affect the target's delete. */
  grantable?: boolean
  /** Whether `force` rows are retained unchanged after the target is deleted. */
  stays?: boolean
  /** Detaches `force` or `follow` rows from the target instead of deleting them. */
  detach?: (tx: Tx, ids: readonly string[]) => Promise<unknown>
  /**
   * `block`: the target cannot be deleted while this row exists, even if forced. `force`: blocks unless forced, then the row
   * is deleted with the target. `follow`: always deleted with the target; counted alongside blocking rows.
   */
  on_delete: 'block' | 'force' | 'follow' | 'cascade' | 'null'
}

/**
 * The declaration of a resource: how to find and write a row, its project, its name in policies, its references and events.
 * Declared once by the module that owns it.
 */
export type Kind<Row extends KindRow = KindRow, Event extends string = string> = EventSource<Row, Event> & {
  prefix: string
  table: string
  /** Global resources have `*` as project. */
  global: boolean
  /** Whether rows have tags for policy conditions. */
  tags: boolean
  /** Error code for an unknown id in a path. */
  notFound: ErrorCode
  /** Error code for an unknown id in a body. */
  missing: ErrorCode
  /** Whether the rows prevent the delete of their project; false if they are deleted with it. */
  counted: boolean
  /** Whether triggers maintain the number of rows per project in `row_counts`. */
  countKept: boolean
  /** Column with the author of a row; null if the rows do not act on the platform. */
  authored: AuthorColumn | null
  /** Ids not created by `newId`: rows that ship with the deployment. */
  fixedIds: readonly string[]
  references: readonly Reference[]
  /** Fields for a table of rows, at most six; null for the default fields. */
  listed: readonly string[] | null
  /** Select list of a row over the alias `t`. */
  columns: Fragment
  /** The record's schema. */
  record: z.ZodType
  row: z.ZodType<Row>
  /** Tag of statements that return rows of the kind. */
  sql: ReturnType<typeof sql.type<z.ZodType<Row>>>
  /** Returns a row by id, or null. `lock` locks the row: FOR UPDATE, or FOR NO KEY UPDATE if the kind is `shared`. */
  find(db: Queryable, id: string, lock?: boolean): Promise<Row | null>
  /** Locks and returns a row. Raises `notFound` if it does not exist. */
  lock(db: Queryable, id: string): Promise<Row>
  /** Returns a row of a project, protected from deletion until the transaction ends (FOR KEY SHARE), or null. */
  reference(db: Queryable, id: string, projectId: string | null): Promise<Row | null>
  /** Inserts a row, with a new id unless one is given. A unique violation raises the error declared for its index. */
  insert(db: Queryable, values: Values<Row>): Promise<Row>
  /** Inserts a row, or returns null on a unique conflict, which does not abort the transaction. */
  insertUnlessTaken(db: Queryable, values: Values<Row>): Promise<Row | null>
  /** Updates the given columns and `updated_at`. The caller holds the row lock. */
  update(db: Queryable, id: string, values: Values<Row>): Promise<Row>
  /** Deletes and returns a row; null if it does not exist. */
  delete(db: Queryable, id: string): Promise<Row | null>
  /** Returns the writable columns that differ between two states of a row. */
  changes(before: Row, after: Row): Values<Row>
  /** Returns the normalized path by which policies also name the row, or null. */
  path?: (row: Row) => string | null
  /** The parent by which policies also name the row: either name may allow, either may deny. */
  parent?: Parent
  /** Returns the name of the row in policies if it is not its own: a delivery is named by its webhook. */
  authorize?: (row: Row) => NamedRow
  /** Deletes a row and its dependent data, emitting its delete event first; used by forced deletes of its target. */
  remove?: (tx: Tx, row: Row) => Promise<void>
  /** Deletes many rows in one statement; for kinds without a delete event. */
  removeAll?: (tx: Tx, ids: readonly string[]) => Promise<void>
}

/** The kind of a row's parent, and the column with its id. */
export type Parent = { kind: string; column: string }

/** The name of a row in policies: its parent, whose tags apply if they are given. */
export type NamedRow = { type: string; id: string; tags?: Record<string, string> | null }

/** `author`: the last author of a definition. `authority`: the principal as which the row acts by itself. */
type AuthorColumn = 'author' | 'authority'

export type KindRow = { id: string; project_id: string | null; tags?: Record<string, string> | null }

/** Columns of a row to write. */
export type Values<Row> = { [K in keyof Row]?: Row[K] }

/** Every kind of the process. */
export const kinds = declarations<Kind<any>>('kind', ({ name }) => name)

type KindOptions<Row extends KindRow, Event extends string> = {
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
   * Whether transactions reference its rows constantly, as every write references its project. Their key share locks would
   * starve FOR UPDATE, so rows are locked FOR NO KEY UPDATE, which excludes other changes but not references.
   */
  shared?: boolean
  references?: readonly Reference[]
  listed?: readonly string[]
  events?: readonly Event[]
  eventNames?: EventSource<Row, Event>['eventNames']
  eventAliases?: EventSource<Row, Event>['eventAliases']
  eventNotes?: string
  /** Raises the error of a unique violation, by index name, given the values written. */
  unique?: Record<string, (values: Values<Row>) => never>
  find?: Kind<Row>['find']
  /** Acquires a lock that precedes the row lock, for example of its container. */
  lockFirst?: (db: Queryable, id: string) => Promise<unknown>
  path?: (row: Row) => string | null
  parent?: Parent & { column: keyof Row }
  authorize?: (row: Row) => NamedRow
  remove?: (tx: Tx, row: Row) => Promise<void>
  removeAll?: Kind<Row>['removeAll']
}

type Show<T> = { [K in keyof T]: T[K] }

/** A row: the fields of its record and the hidden columns. */
type RowOf<R extends z.ZodObject, H extends z.ZodRawShape> =
  Show<z.output<R> & { [K in keyof H]: z.output<H[K]> }> extends infer Row extends KindRow ? Row : never

type DeclareKind = {
  /**
   * Declares a kind by the schema of its record. `hidden` contains columns that are not on the wire; `computed` contains the
   * select expressions, over the alias `t`, of fields that are not columns.
   */
  <R extends z.ZodObject, H extends z.ZodRawShape = {}, const Event extends string = never>(
    declaration: KindOptions<RowOf<R, H>, Event> & {
      record: R
      hidden?: H
      computed?: { [K in keyof (R['shape'] & H)]?: Fragment }
      present?: (row: RowOf<R, H>) => object
    },
  ): Kind<RowOf<R, H>, Event> & { row: z.ZodObject<Show<R['shape'] & H>> }
  /** Declares a kind whose record is not a subset of its columns: rows contain `columns`, default all. */
  <Row extends KindRow, const Event extends string = never>(
    declaration: KindOptions<Row, Event> & {
      row: z.ZodType<Row>
      columns?: Fragment
      record?: z.ZodType
      present: (row: Row) => object
    },
  ): Kind<Row, Event>
}

type AnyDeclaration = KindOptions<any, any> & {
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
  const recordFields = Object.keys(record?.shape ?? {})
  const row = record ? record.extend(hidden) : (declaration.row as z.ZodType)
  const columns =
    declaration.columns ??
    (record ? selectList([...recordFields, ...Object.keys(hidden)], computed) : sql.fragment`t.*`)
  const table = sql.identifier([declaration.table])
  const typed = sql.type(row)
  const encoders = row instanceof z.ZodObject ? encodersOf(row.shape) : {}
  const forUpdate = declaration.shared ? sql.fragment`for no key update of t` : sql.fragment`for update of t`
  const timestamps = 'updated_at' in encoders ? [sql.fragment`updated_at = now()`] : []
  const columnEntries = (values: Values<any>) =>
    Object.entries(values).filter(([name, value]) => value !== undefined && name in encoders && !(name in computed))
  const encoded = ([name, value]: [string, unknown]): ValueExpression => encoders[name](value)
  const insertion = (values: Values<any>, conflict: Fragment) => {
    const entries = columnEntries({ id: newId(declaration.prefix), ...values })
    return typed`
      insert into ${table} as t (${list(entries.map(([name]) => sql.identifier([name])))})
      values (${list(entries.map(encoded))}) ${conflict} returning ${columns}`
  }
  const raiseConflict = (error: unknown, values: Values<any>): never => {
    if (error instanceof UniqueIntegrityConstraintViolationError) unique[error.constraint ?? '']?.(values)
    throw error
  }
  const fixed = [...Object.keys(computed), 'id', 'project_id', 'created_at', 'updated_at']
  const writable = Object.keys(encoders).filter(name => !fixed.includes(name))
  const declared: Kind<any, any> = {
    name: declaration.name,
    plural: declaration.plural ?? `${declaration.name}s`,
    prefix: declaration.prefix,
    table: declaration.table,
    global: declaration.global ?? false,
    tags: declaration.tags ?? recordFields.includes('tags'),
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
      return (await declared.find(db, id, true)) ?? raise(declared.notFound, { meta: { id } })
    },
    reference: async (db, id, projectId) =>
      isIdOf(declared, id)
        ? db.maybeOne(
            typed`select ${columns} from ${table} t where t.id = ${id} and ${inProject(declared, projectId)} for key share of t`,
          )
        : null,
    async insert(db, values) {
      try {
        return await db.one(insertion(values, sql.fragment``))
      } catch (error) {
        return raiseConflict(error, values)
      }
    },
    insertUnlessTaken: (db, values) => db.maybeOne(insertion(values, sql.fragment`on conflict do nothing`)),
    async update(db, id, values) {
      const sets = columnEntries(values).map(entry => sql.fragment`${sql.identifier([entry[0]])} = ${encoded(entry)}`)
      try {
        return await db.one(
          typed`update ${table} as t set ${list([...sets, ...timestamps])} where t.id = ${id} returning ${columns}`,
        )
      } catch (error) {
        return raiseConflict(error, values)
      }
    },
    delete: (db, id) => db.maybeOne(typed`delete from ${table} as t where t.id = ${id} returning ${columns}`),
    changes: (before, after) =>
      Object.fromEntries(
        writable.flatMap(name => (isDeepStrictEqual(before[name], after[name]) ? [] : [[name, after[name]]])),
      ),
    present: declaration.present ?? (row => pickFields(row, recordFields)),
    path: declaration.path,
    parent: declaration.parent,
    authorize: declaration.authorize,
    remove: declaration.remove,
    removeAll: declaration.removeAll,
  }
  return declared
}) as never

/** Returns the named fields of a row, in the given order. */
export function pickFields(row: Record<string, any>, names: readonly string[]): object {
  const record: Record<string, unknown> = {}
  for (const name of names) record[name] = row[name]
  return record
}

/** Returns the condition that a row belongs to a project; global rows belong to every project. */
export const inProject = ({ global }: Pick<Kind, 'global'>, projectId: string | null): Fragment =>
  global ? sql.fragment`true` : sql.fragment`t.project_id = ${projectId}`

const list = (parts: readonly ValueExpression[]) => sql.join(parts, sql.fragment`, `)

/** Returns a select list of columns over the alias `t`; columns in `computed` use their expression. */
export const selectList = (names: readonly string[], computed: Record<string, Fragment | undefined> = {}): Fragment =>
  sql.fragment`${list(
    names.map(name => {
      const expression = computed[name]
      return expression ? sql.fragment`${expression} as ${sql.identifier([name])}` : sql.identifier(['t', name])
    }),
  )}`

type Encoder = (value: unknown) => ValueExpression

/**
 * Returns the parameter encoder of each column: arrays of strings and numbers as SQL arrays, other objects as JSON text for
 * json and jsonb columns.
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

/** Returns the type of a field without optional, nullable and default wrappers. */
function bare(field: z.ZodType): z.ZodType {
  const def = field.def as { innerType?: z.ZodType; out?: z.ZodType }
  const inner = def.innerType ?? def.out
  return inner ? bare(inner) : field
}

/** Declares a resource type without rows, which policies can only name as a whole, `*`. */
export const kindWithoutRows = (name: string): Kind => ({
  ...kind({ name, plural: name, prefix: '', table: '', counted: false, row: z.custom<KindRow>(), present: row => row }),
  find: async () => null,
})

/** Converts `memory_store` to `MemoryStore`. */
export const toPascalCase = (name: string): string =>
  name.replace(/(^|_)([a-z])/g, (_match, _gap, letter: string) => letter.toUpperCase())

/** Returns a noun with its indefinite article, for summaries. */
export const withArticle = (noun: string): string => `${/^[aeio]/.test(noun) ? 'an' : 'a'} ${noun}`

/** Whether a string is a well-formed id of a kind. Other strings are treated as unknown ids, without a query. */
export const isIdOf = (target: Pick<Kind, 'prefix' | 'fixedIds'>, id: string): boolean =>
  (isId(id) && hasIdPrefix(target, id) && id.length === target.prefix.length + 27) || target.fixedIds.includes(id)

/** Whether a text begins as ids of a kind do, well-formed or not. */
export const hasIdPrefix = ({ prefix }: Pick<Kind, 'prefix'>, text: string): boolean => text.startsWith(`${prefix}_`)

/** Returns the name of a resource in policies: `srn:<project>:<type>:<id>`. */
export const srn = (projectId: string | null, type: string, id: string): string =>
  `srn:${projectId ?? '*'}:${type}:${id}`
