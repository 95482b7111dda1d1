import { Button, Text } from '@mantine/core'
import type { Agent } from '@muster/client'
import { listAgents } from '@muster/client/operations'
import { IconPlus, IconRobot } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { Link, useNavigate, useSearch } from '@tanstack/react-router'
import { api } from '../api.ts'
import { type Column, ListView, PAGE_ROWS, type PageOf, RecordLink, SearchField } from '../components/list.tsx'
import { Page } from '../components/page.tsx'
import { Notice } from '../components/states.tsx'
import { visible, When } from '../components/text.tsx'
import { usePermissions, useProjectId } from '../projects.ts'
import { strings } from '../strings.ts'

/** Agents of a project. */
export function Agents() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { q, page = 1 } = useSearch({ strict: false })
  const navigate = useNavigate()
  const setSearch = (search: { q?: string; page?: number }) =>
    void navigate({ to: '.', search: { q, ...search }, replace: true })
  const agents = useQuery<PageOf<Agent>>({
    queryKey: ['agents', projectId, { q, page }],
    queryFn: async ({ signal }) => {
      const args = { project_id: projectId, name: q, limit: PAGE_ROWS, offset: (page - 1) * PAGE_ROWS }
      return (await listAgents(api, args, { signal }).page()) as PageOf<Agent>
    },
    placeholderData: previous => previous,
  })
  const columns: Column<Agent>[] = [
    {
      title: strings.agents.name,
      isWide: true,
      cell: ({ id, name, description }) => (
        <>
          <RecordLink to={`/p/${projectId}/agents/${id}`}>{visible(name ?? strings.agents.unnamed)}</RecordLink>
          {description && (
            <Text size="sm" c="dimmed" lineClamp={1}>
              {visible(description)}
            </Text>
          )}
        </>
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
        query={agents}
        action="agents:ListAgents"
        columns={columns}
        filters={<SearchField value={q} onChange={q => setSearch({ q })} />}
        isFiltered={q !== undefined}
        onClear={() => setSearch({ q: undefined })}
        page={page}
        onPage={next => setSearch({ page: next > 1 ? next : undefined })}
        empty={
          <Notice icon={<IconRobot />} title={strings.agents.empty} action={create} color="indigo">
            {strings.agents.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}
