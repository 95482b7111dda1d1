import { z } from 'zod'
import { Comparison } from '../api/compare.ts'
import { type Kind, type KindRow, toPascalCase, withArticle } from '../api/kind.ts'
import { pageOf, textFilter } from '../api/lists.ts'
import { type Context, type Gate, itemOperation, type Operation, type OperationBase } from '../api/operation.ts'
import type { Queryable } from '../db/sql.ts'
import type { versionStore } from './store.ts'
import { expectedVersion, requireVersion, versionAuthor, versionLabel, versionNumber, versionQuery } from './version.ts'
import type { Versions } from './versioned.ts'

/** Parts of a restore that differ between kinds. */
export type Restore<Row> = Pick<
  Partial<OperationBase<undefined, undefined>>,
  'description' | 'alsoActions' | 'admit' | 'answers' | 'raises'
> & {
  /** Whether the body may have `expected_version`. */
  expects?: boolean
  /** Refuses the restored row `next`; not called if its configuration is the current one. */
  check?: (next: Row, context: Context<any, any, Row> & { stored: Row }) => unknown
  /** Returns additional fields of the response, such as warnings. */
  show?: (row: Row, context: Context<any, any, Row>) => object | Promise<object>
}

const RestoreInput = z.strictObject({
  label: versionLabel.describe('Label of the new version. Default `restored from v<n>`.'),
  expected_version: expectedVersion,
})

/**
 * Returns the operations that read the versions of a kind: list, compare and get. The list has a filter by label if
 * versions have labels.
 */
export function versionReads(
  versions: Pick<ReturnType<typeof versionStore<object>>, 'record' | 'list' | 'get'> & {
    kind: Kind<any, any>
    compare(db: Queryable, row: any, range: { from?: number; to?: number }): Promise<unknown>
  },
  { path, tag, ...overrides }: { path: string; tag: string; gate?: Gate; action?: string },
): Operation[] {
  const { kind, record } = versions
  const noun = toPascalCase(kind.name)
  const words = withArticle(kind.name.replaceAll('_', ' '))
  const module = path.split('/')[1]
  const at = `${path}/{${kind.name}_id}/versions`
  const isPlain = !('label' in record.shape)
  const labels = { label: textFilter.describe('Exact match of `label`') }
  return [
    itemOperation(kind, {
      id: `list${noun}Versions`,
      method: 'get',
      path: at,
      summary: `List versions of ${words}`,
      description: isPlain
        ? 'Newest first. Every change creates one.'
        : 'Newest first. A page contains at most 16 MiB of configurations; if it is cut, `limit` is the number of versions returned.',
      tag,
      action: `${module}:List${noun}Versions`,
      ...overrides,
      query: z.object(isPlain ? {} : labels) as z.ZodObject<typeof labels>,
      paged: true,
      answers: { 200: pageOf(record) },
      run: ({ resource, db, page, query }) => versions.list(db, page, resource.id, query.label),
    }),
    itemOperation(kind, {
      id: `compare${noun}Versions`,
      method: 'get',
      path: `${at}/compare`,
      summary: `Compare two versions of ${words}`,
      description: 'Returns the added, removed and changed fields by path.',
      tag,
      action: `${module}:Get${noun}Version`,
      ...overrides,
      query: z.object({
        from: versionQuery.describe('Version to compare from. Default: the version before.'),
        to: versionQuery.describe('Version to compare to. Default: the newest version.'),
      }),
      answers: { 200: Comparison },
      run: ({ resource, db, query }) => versions.compare(db, resource, query),
    }),
    itemOperation(kind, {
      id: `get${noun}Version`,
      method: 'get',
      path: `${at}/{version}`,
      summary: `Get a version of ${words}`,
      description: 'Returns the configuration as of the version.',
      tag,
      action: `${module}:Get${noun}Version`,
      ...overrides,
      answers: { 200: record },
      run: ({ resource, db, params }) => versions.get(db, resource.id, versionNumber(params.version)),
    }),
  ]
}

/** Returns the operation that writes the configuration of an earlier version as the next one, unless it is unchanged. */
export function restoreOperation<Row extends KindRow>(
  versions: Versions,
  { path, tag }: { path: string; tag: string },
  { expects = false, check, show, ...overrides }: Restore<Row>,
): Operation {
  const { kind, fields } = versions
  const noun = toPascalCase(kind.name)
  const body = expects ? RestoreInput : RestoreInput.omit({ expected_version: true })
  return itemOperation(kind, {
    id: `restore${noun}Version`,
    method: 'post',
    path: `${path}/{${kind.name}_id}/versions/{version}/restore`,
    summary: `Restore ${withArticle(kind.name.replaceAll('_', ' '))} version`,
    description: `Writes ${fields.map(name => `\`${name}\``).join(', ')} of that version as the next one, validated and authorized like a new write. Other fields are unchanged. Without a difference no version is created.`,
    tag,
    action: `${path.split('/')[1]}:Restore${noun}Version`,
    body: body.meta({ id: `${noun}RestoreInput` }) as typeof RestoreInput,
    bodyOptional: true,
    answers: { 200: kind.record },
    ...overrides,
    async run(context) {
      const { tx, caller, audit, params, body } = context
      const number = versionNumber(params.version)
      const stored = await kind.lock(tx, context.resource.id)
      requireVersion(stored, body?.expected_version)
      const next = { ...stored, ...versions.read((await versions.get(tx, stored.id, number)).config) }
      let row = stored
      if (!versions.same(stored, next)) {
        await check?.(next, { ...context, stored })
        const by = versionAuthor(caller, body?.label ?? `restored from v${number}`)
        row = await versions.change(tx, stored, kind.changes(stored, next), by)
        audit.detail.version = row.version
        tx.emit(kind, 'updated', row)
      }
      return { ...kind.present(row), ...(await show?.(row, context)) }
    },
  })
}
