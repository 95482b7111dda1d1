import fields from 'fields:createWebhook'
import { Button, Code, Group, Modal, Stack, Text } from '@mantine/core'
import { useDisclosure } from '@mantine/hooks'
import type { Webhook, WebhookInput } from '@muster/client'
import { createWebhook, listEvents, listWebhooks, previewWebhook, updateWebhook } from '@muster/client/operations'
import { IconPlus, IconWebhook } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { api, every, POLL_MS } from '#api.ts'
import { useEventPatterns } from '#choices.ts'
import { useAction } from '#components/actions.tsx'
import { ChoiceField, type Column, ListView, RecordLink, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { type ObjectSchema, SchemaForm, type Values } from '#components/schema-form.tsx'
import { SecretOnce } from '#components/secret.tsx'
import { FailureAlert, Notice } from '#components/states.tsx'
import { StatusBadge } from '#components/status.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.webhooks

const COUNT_POLL_MS = 60_000
/** Events above which no more are counted. */
const COUNTED = 1000

const webhookColumns = (projectId: string): Column<Webhook>[] => [
  {
    title: strings.name,
    isWide: true,
    cell: ({ id, name, url }) => (
      <>
        <RecordLink to={`/p/${projectId}/webhooks/${id}`}>{visible(name)}</RecordLink>
        <Text size="sm" c="dimmed" className="mono" lineClamp={1}>
          {visible(url)}
        </Text>
      </>
    ),
  },
  {
    title: texts.events,
    cell: ({ events }) => (
      <Text size="sm" className="mono" lineClamp={2}>
        {visible(events.join(', '))}
      </Text>
    ),
  },
  {
    title: strings.state,
    cell: webhook => (
      <>
        <StatusBadge status={webhook.active ? 'active' : 'inactive'} />
        {!webhook.active && <PassedCount webhook={webhook} />}
      </>
    ),
  },
  { title: strings.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
]

/** Webhooks of a project. */
export function Webhooks() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  // The dialog is not part of the empty list: the new webhook must not close it before its secret was read.
  const [isCreating, creating] = useDisclosure()
  const list = useList<Webhook>(
    ['webhooks', projectId],
    async ({ active }, bounds, signal) =>
      listWebhooks(
        api,
        { project_id: projectId, ...(active ? { active: active === 'true' } : {}), ...bounds },
        { signal },
      ).page(),
    { pollMs: POLL_MS },
  )
  const columns = webhookColumns(projectId)
  const create = isAllowed(createWebhook) && (
    <Button leftSection={<IconPlus size={16} />} onClick={creating.open}>
      {texts.create}
    </Button>
  )
  return (
    <Page title={strings.nav.webhooks} intro={texts.intro} actions={create}>
      <ListView
        label={strings.nav.webhooks}
        list={list}
        operation={listWebhooks}
        columns={columns}
        fields={
          <ChoiceField
            name="active"
            label={strings.state}
            choices={[
              { value: 'true', label: strings.statuses.active },
              { value: 'false', label: strings.statuses.inactive },
            ]}
          />
        }
        empty={
          <Notice icon={<IconWebhook />} title={texts.empty} action={create} color="indigo">
            {texts.emptyText}
          </Notice>
        }
      />
      <Modal opened={isCreating} onClose={creating.close} title={texts.create} size="lg">
        <WebhookForm onDone={creating.close} />
      </Modal>
    </Page>
  )
}

/** Returns how many events an inactive webhook would have received since its last change; null if not known. */
export function usePassedEvents({ id, project_id, events, active, updated_at }: Webhook): string | null {
  const isAllowed = usePermissions(project_id)
  // The service reads every matching event for a count, which only grows.
  const isEnough = ({ state }: { state: { data?: number } }) => (state.data ?? 0) > COUNTED
  const { data } = useQuery<number>({
    queryKey: ['webhook', id, 'passed', events, updated_at],
    queryFn: async ({ signal }) =>
      (await listEvents(api, { project_id, pattern: events, from: updated_at, limit: 1 }, { signal }).page()).total,
    enabled: !active && isAllowed(listEvents) === true,
    staleTime: query => (isEnough(query) ? Number.POSITIVE_INFINITY : 0),
    refetchInterval: query => !isEnough(query) && every(COUNT_POLL_MS)(query),
  })
  if (data === undefined) return null
  return texts.passed(Math.min(data, COUNTED), data > COUNTED)
}

function PassedCount({ webhook }: { webhook: Webhook }) {
  const passed = usePassedEvents(webhook)
  return passed ? (
    <Text size="xs" c="dimmed">
      {passed}
    </Text>
  ) : null
}

type Mail = NonNullable<Webhook['mail']>

/** The fields of a webhook, with the addresses of a mail as fields. */
const schema: ObjectSchema = {
  ...fields,
  properties: {
    ...fields.properties,
    template: { ...fields.properties?.template, title: texts.template, description: texts.templateText },
    mail_from: { type: 'string', title: texts.mailFrom, description: texts.mailFromText },
    mail_to: { type: 'array', items: { type: 'string' }, title: texts.mailTo },
    secret_id: { ...fields.properties?.secret_id, title: texts.mailKey, description: texts.mailKeyText },
  },
}

const MAIL_FIELDS = ['mail_from', 'mail_to', 'secret_id']

const isMail = ({ template }: Values): boolean => template === 'postmark' || template === 'sendgrid'

const templateChoices = Object.entries(texts.templates).map(([value, label]) => ({ value, label }))

/** Returns the body of a write: the entered addresses, completed by the unchanged ones. */
function webhookBody({ mail_from, mail_to, ...values }: Values, mail?: Mail | null): Values {
  if (mail_from === undefined && mail_to === undefined) return values
  const isCleared = mail_from === null && mail_to === null
  return { ...values, mail: isCleared ? null : { from: mail_from ?? mail?.from ?? '', to: mail_to ?? mail?.to ?? [] } }
}

/** Shows the body that the service makes of a sample event with the entered template. */
function Preview({ entries }: { entries: Values }) {
  const projectId = useProjectId()
  const { template, mail_from, mail_to } = entries
  const preview = useAction<void, { body: string }>({
    run: async () =>
      previewWebhook(api, {
        project_id: projectId,
        template: template as Webhook['template'],
        mail: isMail(entries) ? { from: mail_from as string, to: mail_to as string[] } : null,
      }),
  })
  return (
    <Stack gap="sm">
      <Text size="sm" c="dimmed">
        {texts.urls[template as NonNullable<Webhook['template']>]}
      </Text>
      <Group>
        <Button size="xs" variant="default" loading={preview.isPending} onClick={() => preview.mutate()}>
          {texts.preview}
        </Button>
      </Group>
      {preview.error && <FailureAlert error={preview.error} />}
      {preview.data && (
        <Code block className="wrap" aria-label={texts.previewBody} role="region" tabIndex={0}>
          {visible(JSON.stringify(JSON.parse(preview.data.body), null, 2))}
        </Code>
      )}
    </Stack>
  )
}

/** Creates or changes a webhook. The secret of a new one is shown once. */
export function WebhookForm({ webhook, onDone }: { webhook?: Webhook; onDone: () => void }) {
  const projectId = useProjectId()
  const navigate = useNavigate()
  const patterns = useEventPatterns()
  const isAllowed = usePermissions(projectId)
  const save = useAction<Values, Webhook & { secret?: string }>({
    run: async values =>
      webhook
        ? updateWebhook(api, { ...webhookBody(values, webhook.mail), webhook_id: webhook.id })
        : createWebhook(api, { ...(webhookBody(values) as WebhookInput), project_id: projectId }),
    stale: [['webhooks'], ['webhook', webhook?.id], ['start']],
    onDone: () => webhook && onDone(),
  })
  const made = save.data
  if (made?.secret)
    return (
      <SecretOnce
        secret={made.secret}
        notice={texts.secretOnce}
        onDone={() => void navigate({ to: `/p/${projectId}/webhooks/${made.id}` })}
      />
    )
  return (
    <SchemaForm
      schema={schema}
      initial={webhook && { ...webhook, mail_from: webhook.mail?.from, mail_to: webhook.mail?.to }}
      only={[
        'name',
        'url',
        'events',
        'template',
        ...MAIL_FIELDS,
        'description',
        'policy_id',
        ...(webhook ? [] : ['active']),
      ]}
      isShown={(name, entries) => !MAIL_FIELDS.includes(name) || isMail(entries)}
      suggestions={{ events: ['*', ...new Set(patterns)] }}
      options={{ template: templateChoices }}
      submitLabel={webhook ? strings.save : strings.create}
      isPending={save.isPending}
      error={save.error}
      onSubmit={values => save.mutate(values)}
      onCancel={onDone}
    >
      {entries => (entries.template && isAllowed(previewWebhook) ? <Preview entries={entries} /> : null)}
    </SchemaForm>
  )
}
