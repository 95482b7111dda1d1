import { Button } from '@mantine/core'
import type { Orchestration } from '@muster/client'
import { listOrchestrations } from '@muster/client/operations'
import { IconHierarchy, IconPlus } from '@tabler/icons-react'
import { Link } from '@tanstack/react-router'
import { api } from '../api.ts'
import { type Column, ListView, NameCell, SearchField, useList } from '../components/list.tsx'
import { Page } from '../components/page.tsx'
import { Notice } from '../components/states.tsx'
import { When } from '../components/text.tsx'
import { usePermissions, useProjectId } from '../projects.ts'
import * as strings from '../strings.ts'

/** Orchestrations of a project. */
export function Orchestrations() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const list = useList<Orchestration>(['orchestrations', projectId], async ({ q }, bounds, signal) =>
    listOrchestrations(api, { project_id: projectId, name: q, ...bounds }, { signal }).page(),
  )
  const columns: Column<Orchestration>[] = [
    {
      title: strings.orchestrations.name,
      isWide: true,
      cell: ({ id, name, description }) => (
        <NameCell to={`/p/${projectId}/orchestrations/${id}`} name={name} description={description} />
      ),
    },
    { title: strings.runs.nodes, cell: ({ nodes }) => nodes.length },
    { title: strings.runs.version, cell: ({ version }) => version },
    { title: strings.agents.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
  ]
  const create = isAllowed('orchestrations:CreateOrchestration') && (
    <Button component={Link} to={`/p/${projectId}/orchestrations/new`} leftSection={<IconPlus size={16} />}>
      {strings.orchestrations.create}
    </Button>
  )
  return (
    <Page title={strings.nav.orchestrations} intro={strings.orchestrations.intro} actions={create}>
      <ListView
        label={strings.nav.orchestrations}
        list={list}
        action="orchestrations:ListOrchestrations"
        columns={columns}
        fields={<SearchField />}
        empty={
          <Notice icon={<IconHierarchy />} title={strings.orchestrations.empty} action={create} color="indigo">
            {strings.orchestrations.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}
