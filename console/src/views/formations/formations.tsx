import { Badge, Button, Group } from '@mantine/core'
import type { Formation } from '@muster/client'
import { createFormation, listFormations } from '@muster/client/operations'
import { IconPlus, IconStack2 } from '@tabler/icons-react'
import { Link } from '@tanstack/react-router'
import { api, POLL_MS } from '#api.ts'
import { ChoiceField, type Column, ListView, RecordLink, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Notice } from '#components/states.tsx'
import { StatusBadge, statusText } from '#components/status.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const STATUSES = ['creating', 'active', 'updating', 'failed', 'deleting', 'delete_failed'] as const

const formationColumns = (projectId: string): Column<Formation>[] => [
  {
    title: strings.name,
    isWide: true,
    cell: ({ id, name }) => <RecordLink to={`/p/${projectId}/formations/${id}`}>{visible(name)}</RecordLink>,
  },
  {
    title: strings.state,
    cell: ({ status, termination_protection }) => (
      <Group gap={6}>
        <StatusBadge status={status} />
        {termination_protection && <Badge variant="default">{strings.formations.protected}</Badge>}
      </Group>
    ),
  },
  {
    title: strings.formations.resources,
    cell: ({ template }) => Object.keys((template.resources as object | undefined) ?? {}).length,
  },
  { title: strings.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
]

/** Formations of a project. */
export function Formations() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const list = useList<Formation>(
    ['formations', projectId],
    async ({ q, status }, bounds, signal) => {
      const chosen = STATUSES.filter(each => each === status)
      return listFormations(
        api,
        { project_id: projectId, name: q, status: chosen.length > 0 ? chosen : undefined, ...bounds },
        { signal },
      ).page()
    },
    { pollMs: POLL_MS },
  )
  const columns = formationColumns(projectId)
  const create = isAllowed(createFormation) && (
    <Button component={Link} to={`/p/${projectId}/formations/new`} leftSection={<IconPlus size={16} />}>
      {strings.formations.create}
    </Button>
  )
  return (
    <Page title={strings.nav.formations} intro={strings.formations.intro} actions={create}>
      <ListView
        label={strings.nav.formations}
        list={list}
        operation={listFormations}
        columns={columns}
        fields={
          <>
            <SearchField />
            <ChoiceField
              name="status"
              label={strings.state}
              choices={STATUSES.map(value => ({ value, label: statusText(value) }))}
            />
          </>
        }
        empty={
          <Notice icon={<IconStack2 />} title={strings.formations.empty} action={create} color="indigo">
            {strings.formations.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}
