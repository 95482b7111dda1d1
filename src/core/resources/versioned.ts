import { z } from 'zod'
import { Author, type AuthoredRow, behaviourColumns, definitionOf } from '../api/authors.ts'
import { isSame } from '../api/compare.ts'
import { type Kind, pickFields, selectList, toPascalCase, type Values } from '../api/kind.ts'
import { pageResult } from '../api/lists.ts'
import type { Page } from '../api/operation.ts'
import { newId } from '../base/ids.ts'
import type { Services } from '../base/services.ts'
import { type Fragment, jsonb, type Queryable, sql, voidStatement } from '../db/sql.ts'
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

type VersionDeclaration<Row extends VersionedRow, Name extends keyof Row & string> = {
  kind: Kind<Row, any>
  prefix: string
  fields: readonly Name[]
  columns?: z.ZodRawShape
  read?: (stored: Record<string, unknown>) => Pick<Row, Name>
  comparable?: (config: Pick<Row, Name>) => object
  derived?: (values: Values<Row>) => Values<Row>
  changed?: (tx: Tx, row: Row, stored: Row, by: VersionAuthor) => unknown
}

type Version<Config> = {
  id: string
  version: number
  config: Config
  label: string | null
  created_by: string | null
  created_at: string
}

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
export const versioned = <Row extends VersionedRow, const Name extends keyof Row & string>(
  declaration: VersionDeclaration<Row, Name>,
): VersionTable<Row, Name> => new VersionTable(declaration)

export class VersionTable<Row extends VersionedRow, Name extends keyof Row & string> {
  readonly kind: Kind<Row, any>
  readonly fields: readonly Name[]
  /** Column with the id of the owner. */
  readonly owner: string
  readonly table: ReturnType<typeof sql.identifier>
  readonly record: z.ZodObject
  readonly #declaration: VersionDeclaration<Row, Name>
  readonly #columns: ReturnType<typeof selectList>
  readonly #row: ReturnType<typeof sql.type>

  constructor(declaration: VersionDeclaration<Row, Name>) {
    const { kind, fields, columns = {} } = declaration
    this.#declaration = declaration
    this.kind = kind
    this.fields = fields
    this.owner = `${kind.name}_id`
    this.table = sql.identifier([`${kind.name}_versions`])
    this.record = z
      .object({ id: z.string(), [this.owner]: z.string(), ...versionFields(fields, columns) })
      .meta({ id: `${toPascalCase(kind.name)}Version` })
    this.#columns = selectList(Object.keys(this.record.shape))
    this.#row = sql.type(this.record)
  }

  /** Converts a stored configuration to the fields of this release. */
  read(stored: Record<string, unknown>): Pick<Row, Name> {
    return this.#declaration.read?.(stored) ?? (stored as Pick<Row, Name>)
  }

  configOf(row: Row): Pick<Row, Name> {
    return pickFields(row, this.fields) as Pick<Row, Name>
  }

  /** Whether two states of a row have the same version. */
  same(left: Row, right: Row): boolean {
    return isSame(this.#comparable(this.configOf(left)), this.#comparable(this.configOf(right)))
  }

  /** Returns the existing versions among the given numbers, which may exceed the range of the column. */
  find(db: Queryable, id: string, numbers: readonly number[]): Promise<readonly Version<Pick<Row, Name>>[]> {
    return db.any(this.#row`
      select ${this.#columns} from ${this.table} t
      where ${this.#ownedBy(id)} and t.version = any(${sql.array([...numbers], 'int8')})`) as never
  }

  /** Returns the author of a version, or null if unknown. */
  async authorOf(db: Queryable, id: string, number: number): Promise<PrincipalRecord | null> {
    const found = await db.maybeOne(authorRow`
      select t.author from ${this.table} t where ${this.#ownedBy(id)} and t.version = ${number}`)
    return found?.author ?? null
  }

  /** Inserts the configuration of a row under its version number. */
  insertVersion(db: Queryable, row: Row, { created_by, label = null }: Omit<VersionAuthor, 'author'>) {
    return db.query(voidStatement`
      insert into ${this.table} (id, ${sql.identifier([this.owner])}, version, config, label, created_by, author)
      values (${newId(this.#declaration.prefix)}, ${row.id}, ${row.version}, ${JSON.stringify(this.configOf(row))}, ${label},
        ${created_by}, ${jsonb(row.author)})`)
  }

  /** Returns a version. Raises RESOURCE_NOT_FOUND if it does not exist. */
  async get(db: Queryable, id: string, number: number): Promise<Version<Pick<Row, Name>>> {
    const [found] = await this.find(db, id, [number])
    return found ?? noVersion(id, number)
  }

  /** Returns the definition that limits the permissions of work under a version, default the current one. */
  async definition(db: Queryable, row: Pick<VersionedRow, 'id' | 'version' | 'author'>, version = row.version) {
    const { id } = row
    return definitionOf({ id, author: version === row.version ? row.author : await this.authorOf(db, id, version) })
  }

  /** Returns a page of versions, newest first; the unique index serves filter and order. */
  list(db: Queryable, bounds: Page, id: string, label?: string) {
    return pageResult<Version<Pick<Row, Name>>>(
      { db, page: bounds },
      {
        columns: this.#columns,
        from: sql.fragment`${this.table} t`,
        rows: this.#ownedBy(id),
        filters: [label !== undefined && sql.fragment`t.label = ${label}`],
        time: sql.fragment`t.created_at`,
        order: sql.fragment`t.version desc`,
        key: sql.fragment`t.id`,
        bytes: sql.fragment`octet_length(t.config::text)`,
        present: found => found,
      },
    )
  }

  /**
   * Returns the differences between two versions; default from the previous to the newest version. Raises
   * RESOURCE_NOT_FOUND if a version does not exist, SERVICE_NOT_READY if no thread is free.
   */
  async compare(services: Services, db: Queryable, row: Row, range: { from?: number; to?: number }) {
    const to = range.to ?? row.version
    const from = range.from ?? Math.max(1, to - 1)
    const found = new Map((await this.find(db, row.id, [from, to])).map(version => [version.version, version]))
    const configAt = (number: number) => {
      const version = found.get(number)
      return version ? this.#comparable(this.read(version.config)) : noVersion(row.id, number)
    }
    const after = configAt(to)
    // Rows older than their version table have no version before the first stored one.
    if (range.from === undefined && !found.has(from)) return { from: to, to, changes: [] }
    return { from, to, changes: await compareVersions(services, row.project_id ?? '*', configAt(from), after) }
  }

  /** Inserts a row with a validated configuration, and its first version. */
  async insert(tx: Tx, values: Values<Row>, by: VersionAuthor): Promise<Row> {
    const row = await this.kind.insert(tx, { ...values, ...this.#derived(values), author: by.author, version: 1 })
    await this.insertVersion(tx, row, by)
    return row
  }

  /** Updates a row locked by the caller, and inserts the next version if the configuration changed. */
  change(tx: Tx, stored: Row, changes: Values<Row>, by: VersionAuthor): Promise<Row> {
    const isNext = !this.same(stored, { ...stored, ...changes })
    const acts = behaviourColumns(changes).some(name => isNext || !(this.fields as readonly string[]).includes(name))
    return this.#write(tx, stored, acts ? { ...changes, author: by.author } : changes, by, isNext)
  }

  /** Makes the caller the author of a locked row, as the next version with the same configuration. */
  adopt(tx: Tx, stored: Row, caller: Caller): Promise<Row> {
    const author = { author: principalRecord(caller) } as Values<Row>
    return this.#write(tx, stored, author, versionAuthor(caller, 'adopted'), true)
  }

  #comparable(config: Pick<Row, Name>): object {
    return this.#declaration.comparable?.(config) ?? config
  }

  #derived(values: Values<Row>): Values<Row> {
    return this.#declaration.derived?.(values) ?? {}
  }

  #ownedBy(id: string): Fragment {
    return sql.fragment`${sql.identifier(['t', this.owner])} = ${id}`
  }

  /** Updates a row locked by the caller, and inserts the next version if `isNext`. */
  async #write(tx: Tx, stored: Row, changes: Values<Row>, by: VersionAuthor, isNext: boolean): Promise<Row> {
    const values = { ...changes, ...this.#derived(changes) }
    const row = await this.kind.update(tx, stored.id, isNext ? { ...values, version: stored.version + 1 } : values)
    await this.#declaration.changed?.(tx, row, stored, by)
    if (isNext) await this.insertVersion(tx, row, by)
    return row
  }
}

/** The versions of a kind. */
export type Versions = VersionTable<any, any>
