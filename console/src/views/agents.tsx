import { Button } from '@mantine/core'
import type { Agent } from '@muster/client'
import { listAgents } from '@muster/client/operations'
import { IconPlus, IconRobot } from '@tabler/icons-react'
import { Link } from '@tanstack/react-router'
import { api } from '../api.ts'
import { type Column, ListView, NameCell, SearchField, useList } from '../components/list.tsx'
import { Page } from '../components/page.tsx'
import { Notice } from '../components/states.tsx'
import { visible, When } from '../components/text.tsx'
import { usePermissions, useProjectId } from '../projects.ts'
import * as strings from '../strings.ts'

/** Agents of a project. */
export function Agents() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const list = useList<Agent>(['agents', projectId], async ({ q }, bounds, signal) =>
    listAgents(api, { project_id: projectId, name: q, ...bounds }, { signal }).page(),
  )
  const columns: Column<Agent>[] = [
    {
      title: strings.agents.name,
      isWide: true,
      cell: ({ id, name, description }) => (
        <NameCell to={`/p/${projectId}/agents/${id}`} name={name ?? strings.agents.unnamed} description={description} />
      ),
    },
    {
      title: strings.agents.model,
      cell: ({ model }) => (model ? <span className="mono">{visible(model)}</span> : strings.agents.defaultModel),
    },
    { title: strings.agents.version, cell: ({ version }) => version },
    { title: strings.agents.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
  ]
  const create = isAllowed('agents:CreateAgent') && (
    <Button component={Link} to={`/p/${projectId}/agents/new`} leftSection={<IconPlus size={16} />}>
      {strings.agents.create}
    </Button>
  )
  return (
    <Page title={strings.nav.agents} intro={strings.agents.intro} actions={create}>
      <ListView
        label={strings.nav.agents}
        list={list}
        action="agents:ListAgents"
        columns={columns}
        fields={<SearchField />}
        empty={
          <Notice icon={<IconRobot />} title={strings.agents.empty} action={create} color="indigo">
            {strings.agents.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}
