import { Text } from '@mantine/core'
import type { Actor } from '@muster/client'
import { listActors } from '@muster/client/operations'
import { IconUserCircle } from '@tabler/icons-react'
import { api } from '#api.ts'
import { type Column, ListView, RecordLink, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Notice } from '#components/states.tsx'
import { Tags, tagFilter } from '#components/tags.tsx'
import { visible, When } from '#components/text.tsx'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.endUsers

const actorColumns = (projectId: string): Column<Actor>[] => [
  {
    title: strings.name,
    isWide: true,
    cell: ({ id, name }) => (
      <>
        <RecordLink to={`/p/${projectId}/actors/${id}`}>{visible(name)}</RecordLink>
        <Text size="xs" c="dimmed" className="mono">
          {id}
        </Text>
      </>
    ),
  },
  {
    title: texts.externalId,
    cell: ({ external_id }) =>
      external_id === null ? strings.none : <span className="mono">{visible(external_id)}</span>,
  },
  {
    title: strings.tags.title,
    cell: ({ tags }) => (Object.keys(tags).length > 0 ? <Tags tags={tags} /> : strings.none),
  },
  { title: strings.created, cell: ({ created_at }) => <When at={created_at} /> },
]

/** End users of a project. */
export function EndUsers() {
  const projectId = useProjectId()
  const list = useList<Actor>(['actors', projectId], async ({ q, tag }, bounds, signal) =>
    listActors(
      api,
      { project_id: projectId, ...(q?.trim() ? { search: q } : {}), ...tagFilter(tag), ...bounds },
      { signal },
    ).page(),
  )
  return (
    <Page title={texts.title} intro={texts.intro}>
      <ListView
        label={texts.title}
        list={list}
        operation={listActors}
        columns={actorColumns(projectId)}
        fields={
          <>
            <SearchField label={texts.search} />
            <SearchField name="tag" label={strings.tags.filter} />
          </>
        }
        view="actors"
        empty={
          <Notice icon={<IconUserCircle />} title={texts.empty} color="indigo">
            {texts.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}
