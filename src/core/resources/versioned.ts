import { z } from 'zod'
import { Author, type AuthoredRow, behaviourColumns, definitionOf } from '../api/authors.ts'
import { isSame } from '../api/compare.ts'
import { type Kind, pickFields, selectList, toPascalCase, type Values } from '../api/kind.ts'
import { pageResult } from '../api/lists.ts'
import type { Page } from '../api/operation.ts'
import { newId } from '../base/ids.ts'
import type { Services } from '../base/services.ts'
import { jsonb, type Queryable, sql, voidStatement } from '../db/sql.ts'
import { type Caller, type PrincipalRecord, principalRecord } from '../iam/caller.ts'
import type { Tx } from '../writes/writer.ts'
import { noVersion, type VersionAuthor, versionAuthor } from './version.ts'
import { compareVersions } from './version-comparison.ts'

/** A row with a current version number. */
export type VersionedRow = AuthoredRow & { version: number }

const authorRow = sql.type(z.object({ author: Author }))

/** Fields of every version after its owner; `columns` of a kind follow the label. */
const versionFields = (fields: readonly string[], columns: z.ZodRawShape) => ({
  version: z.int(),
  config: z.record(z.string(), z.unknown()).describe(`Fields as of that version: ${fields.join(', ')}`),
  label: z.string().nullable(),
  ...columns,
  created_by: z.string().nullable().describe('User that wrote the version; for a key its owner. Null for a copy.'),
  created_at: z.iso.datetime(),
})

/**
 * Declares the versions of a kind: a change of the versioned `fields` appends a row to `<kind>_versions`, which has a unique
 * index on owner and version. Versions keep their author.
 * @param declaration.columns columns of a version besides the common ones
 * @param declaration.read converts a stored configuration to the fields of this release; default unchanged
 * @param declaration.comparable converts a configuration for comparison; default unchanged. Configurations without a
 *   difference are the same version.
 * @param declaration.derived returns columns that follow from written values
 * @param declaration.changed hook after a change, in its transaction, before the version is inserted
 */
export function versioned<Row extends VersionedRow, const Name extends keyof Row & string>(declaration: {
  kind: Kind<Row, any>
  prefix: string
  fields: readonly Name[]
  columns?: z.ZodRawShape
  read?: (stored: Record<string, unknown>) => Pick<Row, Name>
  comparable?: (config: Pick<Row, Name>) => object
  derived?: (values: Values<Row>) => Values<Row>
  changed?: (tx: Tx, row: Row, stored: Row, by: VersionAuthor) => unknown
}) {
  type Config = Pick<Row, Name>
  type Version = {
    id: string
    version: number
    config: Config
    label: string | null
    created_by: string | null
    created_at: string
  }
  const { kind, fields, columns = {}, derived = () => ({}), changed } = declaration
  const { read = config => config as Config, comparable = config => config } = declaration
  const owner = `${kind.name}_id`
  const record = z
    .object({ id: z.string(), [owner]: z.string(), ...versionFields(fields, columns) })
    .meta({ id: `${toPascalCase(kind.name)}Version` })
  const table = sql.identifier([`${kind.name}_versions`])
  const selected = selectList(Object.keys(record.shape))
  const typed = sql.type(record)
  const ownedBy = (id: string) => sql.fragment`${sql.identifier(['t', owner])} = ${id}`

  const configOf = (row: Row): Config => pickFields(row, fields) as Config

  /** Whether two states of a row have the same version. */
  const same = (left: Row, right: Row): boolean => isSame(comparable(configOf(left)), comparable(configOf(right)))

  /** Returns the existing versions among the given numbers, which may exceed the range of the column. */
  const find = (db: Queryable, id: string, numbers: readonly number[]): Promise<readonly Version[]> =>
    db.any(typed`
      select ${selected} from ${table} t
      where ${ownedBy(id)} and t.version = any(${sql.array([...numbers], 'int8')})`) as never

  /** Returns the author of a version, or null if unknown. */
  async function authorOf(db: Queryable, id: string, number: number): Promise<PrincipalRecord | null> {
    const found = await db.maybeOne(authorRow`
      select t.author from ${table} t where ${ownedBy(id)} and t.version = ${number}`)
    return found?.author ?? null
  }

  /** Inserts the configuration of a row under its version number. */
  const insertVersion = (db: Queryable, row: Row, { created_by, label = null }: Omit<VersionAuthor, 'author'>) =>
    db.query(voidStatement`
      insert into ${table} (id, ${sql.identifier([owner])}, version, config, label, created_by, author)
      values (${newId(declaration.prefix)}, ${row.id}, ${row.version}, ${JSON.stringify(configOf(row))}, ${label},
        ${created_by}, ${jsonb(row.author)})`)

  /** Updates a row locked by the caller, and inserts the next version if `isNext`. */
  async function write(tx: Tx, stored: Row, changes: Values<Row>, by: VersionAuthor, isNext: boolean): Promise<Row> {
    const values = { ...changes, ...derived(changes) }
    const row = await kind.update(tx, stored.id, isNext ? { ...values, version: stored.version + 1 } : values)
    await changed?.(tx, row, stored, by)
    if (isNext) await insertVersion(tx, row, by)
    return row
  }

  return {
    kind,
    fields,
    owner,
    table,
    record,
    same,
    read,
    configOf,
    find,
    authorOf,
    insertVersion,

    /** Returns a version. Raises RESOURCE_NOT_FOUND if it does not exist. */
    async get(db: Queryable, id: string, number: number): Promise<Version> {
      const [found] = await find(db, id, [number])
      return found ?? noVersion(id, number)
    },

    /** Returns the definition that limits the permissions of work under a version, default the current one. */
    async definition(db: Queryable, row: Pick<VersionedRow, 'id' | 'version' | 'author'>, version = row.version) {
      const { id } = row
      return definitionOf({ id, author: version === row.version ? row.author : await authorOf(db, id, version) })
    },

    /** Returns a page of versions, newest first; the unique index serves filter and order. */
    list: (db: Queryable, bounds: Page, id: string, label?: string) =>
      pageResult<Version>(
        { db, page: bounds },
        {
          columns: selected,
          from: sql.fragment`${table} t`,
          rows: ownedBy(id),
          filters: [label !== undefined && sql.fragment`t.label = ${label}`],
          time: sql.fragment`t.created_at`,
          order: sql.fragment`t.version desc`,
          key: sql.fragment`t.id`,
          bytes: sql.fragment`octet_length(t.config::text)`,
          present: found => found,
        },
      ),

    /**
     * Returns the differences between two versions; default from the previous to the newest version. Raises
     * RESOURCE_NOT_FOUND if a version does not exist, SERVICE_NOT_READY if no thread is free.
     */
    async compare(services: Services, db: Queryable, row: Row, range: { from?: number; to?: number }) {
      const to = range.to ?? row.version
      const from = range.from ?? Math.max(1, to - 1)
      const found = new Map((await find(db, row.id, [from, to])).map(version => [version.version, version]))
      const configAt = (number: number) => {
        const version = found.get(number)
        return version ? comparable(read(version.config)) : noVersion(row.id, number)
      }
      const after = configAt(to)
      // Rows older than their version table have no version before the first stored one.
      if (range.from === undefined && !found.has(from)) return { from: to, to, changes: [] }
      return { from, to, changes: await compareVersions(services, row.project_id ?? '*', configAt(from), after) }
    },

    /** Inserts a row with a validated configuration, and its first version. */
    async insert(tx: Tx, values: Values<Row>, by: VersionAuthor): Promise<Row> {
      const row = await kind.insert(tx, { ...values, ...derived(values), author: by.author, version: 1 })
      await insertVersion(tx, row, by)
      return row
    },

    /** Updates a row locked by the caller, and inserts the next version if the configuration changed. */
    change(tx: Tx, stored: Row, changes: Values<Row>, by: VersionAuthor): Promise<Row> {
      const isNext = !same(stored, { ...stored, ...changes })
      const acts = behaviourColumns(changes).some(name => isNext || !(fields as readonly string[]).includes(name))
      return write(tx, stored, acts ? { ...changes, author: by.author } : changes, by, isNext)
    },

    /** Makes the caller the author of a locked row, as the next version with the same configuration. */
    adopt: (tx: Tx, stored: Row, caller: Caller): Promise<Row> =>
      write(tx, stored, { author: principalRecord(caller) } as Values<Row>, versionAuthor(caller, 'adopted'), true),
  }
}

/** The versions of a kind. */
export type Versions = ReturnType<typeof versioned<any, any>>
