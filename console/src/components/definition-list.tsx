import type { Client, List } from '@muster/client'
import type { ReactNode } from 'react'
import { api } from '#api.ts'
import { type Operation, usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { type Column, ListView, NameCell, type PageOf, SearchField, useList } from './list.tsx'
import { Page } from './page.tsx'
import { Notice } from './states.tsx'
import { When } from './text.tsx'

type Definition = { id: string; name: string | null; description: string | null; version: number; updated_at: string }
type Args = { project_id: string; name?: string; limit: number; offset: number }

/** The list page of records with versions, such as agents and playbooks. */
export function DefinitionList<Row extends Definition>({
  kind,
  texts,
  icon,
  operations,
  column,
  create,
  isSearched = true,
}: {
  /** Name of the view in the address, and of its queries. */
  kind: 'agents' | 'orchestrations' | 'playbooks' | 'workflows'
  texts: { intro: string; empty: string; emptyText: string }
  icon: ReactNode
  operations: {
    list: Operation & ((client: Client, args: Args, options: { signal: AbortSignal }) => List<Row, PageOf<Row>>)
    create: Operation
  }
  /** What a row shows besides name and version. */
  column: Column<Row>
  /** Creates a record. */
  create: ReactNode
  /** Whether the list is filtered by name. */
  isSearched?: boolean
}) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const list = useList<Row>([kind, projectId], async ({ q }, bounds, signal) =>
    operations.list(api, { project_id: projectId, ...(isSearched ? { name: q } : {}), ...bounds }, { signal }).page(),
  )
  const columns: Column<Row>[] = [
    {
      title: strings.name,
      isWide: true,
      cell: ({ id, name, description }) => (
        <NameCell
          to={`/p/${projectId}/${kind}/${id}`}
          name={name ?? strings.agents.unnamed}
          description={description}
        />
      ),
    },
    column,
    { title: strings.version, cell: ({ version }) => version },
    { title: strings.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
  ]
  const action = isAllowed(operations.create) && create
  return (
    <Page title={strings.nav[kind]} intro={texts.intro} actions={action}>
      <ListView
        label={strings.nav[kind]}
        list={list}
        operation={operations.list}
        columns={columns}
        fields={isSearched && <SearchField />}
        empty={
          <Notice icon={icon} title={texts.empty} action={action} color="indigo">
            {texts.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}
