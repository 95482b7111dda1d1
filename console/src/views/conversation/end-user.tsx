import { Badge, Button, Group, Stack, Table, Text } from '@mantine/core'
import type { ActorOverview, ActorPurgeDryRun } from '@muster/client'
import {
  exportConversation,
  getActorOverview,
  listSessions,
  purgeActorContent,
  replaceActorTags,
  revokeActorTokens,
  takeOverSession,
} from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { Link, useNavigate } from '@tanstack/react-router'
import type { ReactNode } from 'react'
import { useIds } from '#address.ts'
import { api } from '#api.ts'
import { useAgents } from '#choices.ts'
import { ActionButton, FormButton, Question } from '#components/actions.tsx'
import { EntityLink } from '#components/entity-link.tsx'
import { RecordLink, TableHead } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Facts, IdLine, Section } from '#components/record.tsx'
import { RecordPage } from '#components/record-page.tsx'
import { saveAs } from '#components/save.ts'
import { fieldLabel } from '#components/schema-form.tsx'
import { Loaded } from '#components/states.tsx'
import { StatusBadge } from '#components/status.tsx'
import { Tags, TagsButton } from '#components/tags.tsx'
import { costText, sizeText, visible, When } from '#components/text.tsx'
import { usePermissions } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.endUsers

type Part<Name extends keyof ActorOverview> = NonNullable<ActorOverview[Name]>

/** An end user: everything that the user may read about it. */
export function EndUserView() {
  const { actorId } = useIds() as unknown as { actorId: string }
  return (
    <RecordPage queryKey={['actor', actorId]} get={getActorOverview} ids={{ actor_id: actorId }}>
      {overview => <EndUserPage overview={overview} />}
    </RecordPage>
  )
}

function EndUserPage({ overview }: { overview: ActorOverview }) {
  const { actor, sessions, messages, facts, files, approvals, usage, tokens } = overview
  return (
    <Page title={actor.name} intro={texts.one} actions={<EndUserActions overview={overview} />}>
      <Account overview={overview} />
      {sessions && <Sessions part={sessions} actor={actor} />}
      {messages && <Messages part={messages} actor={actor} />}
      {facts && <KnownFacts part={facts} actor={actor} />}
      {files && <Files part={files} actor={actor} />}
      {approvals && <Approvals part={approvals} actor={actor} />}
      {usage && <Usage part={usage} actor={actor} />}
      {tokens && <Access part={tokens} actor={actor} />}
    </Page>
  )
}

type PartProps<Name extends keyof ActorOverview> = { part: Part<Name>; actor: ActorOverview['actor'] }

/** Saves the messages of all sessions of an end user. */
async function exportMessages({ id, project_id }: ActorOverview['actor']): Promise<void> {
  const parts: Uint8Array<ArrayBuffer>[] = []
  for await (const { conversation_id } of listSessions(api, { project_id, actor_id: id })) {
    const content = await exportConversation(api, { conversation_id })
    parts.push((await content.bytes()) as Uint8Array<ArrayBuffer>)
  }
  saveAs(parts, `${id}.ndjson`)
}

function EndUserActions({ overview }: { overview: ActorOverview }) {
  const { actor, sessions } = overview
  const isAllowed = usePermissions(actor.project_id)
  return (
    <>
      {sessions && isAllowed(exportConversation) && (
        <FormButton
          label={texts.export}
          variant="default"
          form={close => (
            <Question text={texts.exportText} label={texts.export} run={() => exportMessages(actor)} close={close} />
          )}
        />
      )}
      {isAllowed(purgeActorContent) && (
        <FormButton
          label={texts.purge}
          color="red"
          form={close => (
            <Question
              text={
                <Stack gap="md">
                  <Text>{texts.purgeText(visible(actor.name))}</Text>
                  <PurgeCounts actorId={actor.id} />
                </Stack>
              }
              label={texts.purge}
              color="red"
              run={async () => purgeActorContent(api, { actor_id: actor.id })}
              stale={[['actor', actor.id]]}
              message={texts.purged}
              close={close}
            />
          )}
        />
      )}
    </>
  )
}

/** Counts what a purge would erase, as the eraser itself does. */
function PurgeCounts({ actorId }: { actorId: string }) {
  const query = useQuery({
    queryKey: ['actor', actorId, 'purge'],
    queryFn: async ({ signal }) =>
      (await purgeActorContent(api, { actor_id: actorId, dry_run: true }, { signal })) as ActorPurgeDryRun,
    gcTime: 0,
    refetchOnWindowFocus: false,
  })
  return (
    <Loaded query={query}>
      {({ counts, complete }) => {
        const found = Object.entries(counts).filter(([, count]) => count > 0)
        return (
          <Stack gap="xs">
            <Text>{found.length > 0 ? texts.purgeCounts : texts.purgeNothing}</Text>
            <Facts facts={found.map(([name, count]) => [fieldLabel(name), count.toLocaleString()])} />
            {!complete && <Text c="dimmed">{texts.purgeMore}</Text>}
          </Stack>
        )
      }}
    </Loaded>
  )
}

function Account({ overview: { actor, last_seen_at, notes } }: { overview: ActorOverview }) {
  const isAllowed = usePermissions(actor.project_id)
  return (
    <Section title={texts.one}>
      <Facts
        facts={[
          [texts.externalId, actor.external_id && <span className="mono">{visible(actor.external_id)}</span>],
          [texts.lastSeen, last_seen_at && <When key="seen" at={last_seen_at} />],
          [texts.notes, notes?.toLocaleString()],
          [strings.created, <When key="created" at={actor.created_at} />],
        ]}
      />
      <IdLine id={actor.id} />
      <Group gap="sm">
        <Tags tags={actor.tags} />
        {isAllowed(replaceActorTags) && (
          <TagsButton
            tags={actor.tags}
            save={async tags => replaceActorTags(api, { ...tags, actor_id: actor.id })}
            stale={[['actor', actor.id], ['actors']]}
          />
        )}
      </Group>
    </Section>
  )
}

/** A part with its number of rows, of which the newest are shown. */
function Newest<Row>({
  title,
  part: { count, newest },
  columns,
  all,
  keyOf,
}: {
  title: string
  part: { count: number; newest: Row[] }
  columns: [title: string, cell: (row: Row) => ReactNode][]
  /** The list of all rows, if there are more. */
  all?: ReactNode
  keyOf: (row: Row) => string
}) {
  const isCut = count > newest.length
  return (
    <Section title={title} actions={isCut && all}>
      {newest.length === 0 ? (
        <Text c="dimmed">{strings.none}</Text>
      ) : (
        <Table className="rows" aria-label={title} verticalSpacing="xs">
          <TableHead titles={columns.map(([name]) => name)} />
          <Table.Tbody>
            {newest.map(row => (
              <Table.Tr key={keyOf(row)}>
                {columns.map(([name, cell], index) => (
                  <Table.Td
                    key={name}
                    className={index === 0 ? 'wide' : undefined}
                    data-title={index === 0 || !name ? undefined : name}
                  >
                    {cell(row)}
                  </Table.Td>
                ))}
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
      )}
      {isCut && (
        <Text size="sm" c="dimmed">
          {texts.newestOf(newest.length, count)}
        </Text>
      )}
    </Section>
  )
}

function Sessions({ part, actor: { id, project_id } }: PartProps<'sessions'>) {
  const isAllowed = usePermissions(project_id)
  const { nameOf } = useAgents(project_id)
  const navigate = useNavigate()
  const nameOfSession = (name: string | null) => visible(name ?? strings.sessions.unnamed)
  return (
    <Newest
      title={texts.sessions}
      part={part}
      keyOf={session => session.id}
      all={
        <Button component={Link} to={`/p/${project_id}/sessions?actor=${id}`} size="xs" variant="default">
          {texts.all}
        </Button>
      }
      columns={[
        [
          strings.name,
          session => (
            <RecordLink to={`/p/${project_id}/sessions/${session.id}`}>{nameOfSession(session.name)}</RecordLink>
          ),
        ],
        [
          strings.sessions.agent,
          ({ agent_id }) => <EntityLink kind="agent" id={agent_id} projectId={project_id} name={nameOf(agent_id)} />,
        ],
        [
          strings.state,
          ({ status, control, needs_attention }) => (
            <Group gap={6}>
              {needs_attention && (
                <Badge color="red.9" variant="filled">
                  {strings.sessions.attention}
                </Badge>
              )}
              {control === 'operator' && <Badge variant="default">{strings.sessions.operator}</Badge>}
              <Badge variant="default">{strings.sessions.status[status]}</Badge>
            </Group>
          ),
        ],
        [strings.sessions.activity, ({ last_activity_at, created_at }) => <When at={last_activity_at ?? created_at} />],
        [
          '',
          session =>
            isAllowed(takeOverSession) &&
            session.status === 'open' &&
            session.control === 'agent' && (
              <ActionButton
                label={strings.sessions.takeOver}
                run={async () => takeOverSession(api, { session_id: session.id, expected_assigned_to: null })}
                stale={[
                  ['actor', id],
                  ['session', session.id],
                ]}
                onDone={() => void navigate({ to: `/p/${project_id}/sessions/${session.id}` })}
              />
            ),
        ],
      ]}
    />
  )
}

function Messages({ part, actor: { project_id } }: PartProps<'messages'>) {
  return (
    <Newest
      title={texts.latestMessages}
      part={part}
      keyOf={message => `${message.session_id} ${message.document_id}`}
      columns={[
        [
          strings.sessionMenu.message,
          ({ session_id, preview }) => (
            <RecordLink to={`/p/${project_id}/sessions/${session_id}`}>{visible(preview ?? texts.erased)}</RecordLink>
          ),
        ],
        [strings.conversations.role, ({ origin }) => strings.sessions.roles[origin]],
        [strings.created, ({ created_at }) => <When at={created_at} />],
      ]}
    />
  )
}

function KnownFacts({ part, actor: { project_id } }: PartProps<'facts'>) {
  return (
    <Newest
      title={texts.facts}
      part={part}
      keyOf={fact => fact.id}
      columns={[
        [
          texts.fact,
          ({ id, memory_store_id, content }) => (
            <RecordLink to={`/p/${project_id}/memory/${memory_store_id}/${id}`}>{visible(content)}</RecordLink>
          ),
        ],
        [strings.created, ({ created_at }) => <When at={created_at} />],
      ]}
    />
  )
}

function Files({ part, actor: { project_id } }: PartProps<'files'>) {
  return (
    <Newest
      title={texts.files}
      part={part}
      keyOf={file => file.id}
      columns={[
        [
          strings.name,
          ({ id, filename }) => <RecordLink to={`/p/${project_id}/files/${id}`}>{visible(filename)}</RecordLink>,
        ],
        [texts.size, ({ size }) => (size === null ? strings.none : sizeText(size))],
        [strings.created, ({ created_at }) => <When at={created_at} />],
      ]}
    />
  )
}

function Approvals({ part, actor: { project_id } }: PartProps<'approvals'>) {
  return (
    <Newest
      title={texts.approvals}
      part={part}
      keyOf={approval => approval.id}
      columns={[
        [
          strings.name,
          ({ tool_name, id, session_id }) =>
            session_id === null ? (
              visible(tool_name ?? id)
            ) : (
              <EntityLink kind="session" id={session_id} projectId={project_id} name={tool_name ?? id} />
            ),
        ],
        [strings.status, ({ status }) => <StatusBadge status={status} />],
        [strings.created, ({ created_at }) => <When at={created_at} />],
      ]}
    />
  )
}

function Usage({ part: { tokens, cost_usd, unpriced, days }, actor }: PartProps<'usage'>) {
  return (
    <Section
      title={texts.usage(days)}
      actions={
        <Button component={Link} to={`/p/${actor.project_id}/usage`} size="xs" variant="default">
          {strings.nav.usage}
        </Button>
      }
    >
      <Facts
        facts={[
          [texts.tokenCount, tokens.toLocaleString()],
          [texts.cost, costText(unpriced > 0 && cost_usd === 0 ? null : cost_usd)],
        ]}
      />
      {unpriced > 0 && (
        <Text size="sm" c="dimmed">
          {texts.unpriced(unpriced)}
        </Text>
      )}
    </Section>
  )
}

function Access({ part: { revocations, open_streams, limits }, actor }: PartProps<'tokens'>) {
  return (
    <Section
      title={texts.tokens}
      actions={
        <ActionButton
          label={texts.revoke}
          question={texts.revokeText}
          run={async () => revokeActorTokens(api, { actor_id: actor.id })}
          stale={[['actor', actor.id]]}
          message={texts.revoked}
        />
      }
    >
      <Facts
        facts={[
          [texts.openStreams, open_streams.toLocaleString()],
          [texts.revocations, revocations.toLocaleString()],
          ...limits.map(({ name, used }): [string, string] => [name, texts.used(used)]),
        ]}
      />
    </Section>
  )
}
