import type { ReactNode } from 'react'
import { usePermissions, useProjectId } from '#projects.ts'
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
  actions,
  read,
  column,
  create,
  isSearched = true,
}: {
  /** Name of the view in the address, and of its queries. */
  kind: 'agents' | 'orchestrations' | 'playbooks' | 'workflows'
  texts: { intro: string; empty: string; emptyText: string; name: string }
  icon: ReactNode
  /** Permissions of the list and of the creation. */
  actions: { list: string; create: string }
  read: (args: Args, options: { signal: AbortSignal }) => Promise<PageOf<Row>>
  /** What a row shows besides name and version. */
  column: Column<Row>
  /** Creates a record. */
  create: ReactNode
  /** Whether the list is filtered by name. */
  isSearched?: boolean
}) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const list = useList<Row>([kind, projectId], ({ q }, bounds, signal) =>
    read({ project_id: projectId, ...(isSearched ? { name: q } : {}), ...bounds }, { signal }),
  )
  const columns: Column<Row>[] = [
    {
      title: texts.name,
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
    { title: strings.agents.version, cell: ({ version }) => version },
    { title: strings.agents.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
  ]
  const action = isAllowed(actions.create) && create
  return (
    <Page title={strings.nav[kind]} intro={texts.intro} actions={action}>
      <ListView
        label={strings.nav[kind]}
        list={list}
        action={actions.list}
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
