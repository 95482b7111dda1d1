import { Text } from '@mantine/core'
import type { Event } from '@muster/client'
import { listEvents } from '@muster/client/operations'
import { IconBolt } from '@tabler/icons-react'
import { api, POLL_MS } from '#api.ts'
import { type Column, ListView, RecordLink, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Notice } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

/** Returns the patterns of the typed text: a name, the beginning of one to a dot, or a pattern. */
function patternsOf(typed: string | undefined): string[] | undefined {
  const name = (typed ?? '').toLowerCase().replace(/[^a-z0-9_.]/g, '')
  const prefix = name.replace(/(?<!\.)\.+$/, '')
  return prefix ? [prefix, `${prefix}.*`] : undefined
}

/** Events of a project. */
export function Events() {
  const projectId = useProjectId()
  const list = useList<Event>(
    ['events', projectId],
    async ({ name, resource_id }, bounds, signal) =>
      listEvents(
        api,
        { project_id: projectId, pattern: patternsOf(name), resource_id: resource_id?.trim(), ...bounds },
        { signal },
      ).page(),
    { pollMs: POLL_MS },
  )
  const columns: Column<Event>[] = [
    {
      title: strings.events.name,
      isWide: true,
      cell: ({ id, event, resource_id }) => (
        <>
          <RecordLink to={`/p/${projectId}/events/${id}`}>{visible(event)}</RecordLink>
          <Text size="sm" c="dimmed" className="mono">
            {visible(resource_id)}
          </Text>
        </>
      ),
    },
    { title: strings.events.resource, cell: ({ resource_type }) => visible(resource_type) },
    { title: strings.events.time, cell: ({ timestamp }) => <When at={timestamp} /> },
  ]
  return (
    <Page title={strings.nav.events} intro={strings.events.intro}>
      <ListView
        label={strings.nav.events}
        list={list}
        operation={listEvents}
        columns={columns}
        fields={
          <>
            <SearchField name="name" label={strings.events.nameFilter} />
            <SearchField name="resource_id" label={strings.events.resourceId} />
          </>
        }
        view="events"
        empty={
          <Notice icon={<IconBolt />} title={strings.events.empty} color="indigo">
            {strings.events.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}
