import { Alert, Anchor, Badge, Button, Select, Switch, Text, TextInput } from '@mantine/core'
import type { AuditEntry } from '@muster/client'
import { exportAuditEntries, getSystemStatus, listAuditEntries, verifyAuditLog } from '@muster/client/operations'
import { IconDownload, IconHistory, IconShieldCheck, IconShieldX } from '@tabler/icons-react'
import { Link } from '@tanstack/react-router'
import { useActions, useUserNames } from '#access.ts'
import { api } from '#api.ts'
import { useAction } from '#components/actions.tsx'
import { EntityLink } from '#components/entity-link.tsx'
import { type Filters, useFilters } from '#components/filters.ts'
import { ChoiceField, type Column, ListView, RecordLink, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { saveAs } from '#components/save.ts'
import { FailureAlert, Notice } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.audit
const STATUSES: Record<string, string[]> = {
  done: ['200', '201', '202', '204'],
  refused: ['401', '403', '404'],
  invalid: ['400', '409', '412', '422', '429'],
}
const OUTCOMES = Object.entries(texts.outcomes).map(([value, label]) => ({ value, label }))

/** The query of the filters in the address. */
function queryOf(projectId: string, { action, principal, resource, outcome, from, to, all }: Filters) {
  return {
    ...(all ? {} : { project_id: projectId }),
    action,
    principal_id: principal,
    resource_public_id: resource,
    status: outcome ? STATUSES[outcome] : undefined,
    from: from && new Date(`${from}T00:00`).toISOString(),
    to: to && new Date(`${to}T23:59:59.999`).toISOString(),
  }
}

/** Who did what, with a verification that nothing was changed since. */
export function Audit() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const actions = useActions()
  const { nameOf } = useUserNames(projectId)
  const { filters, setFilters } = useFilters()
  const list = useList<AuditEntry>(['audit', projectId], async (wanted, bounds, signal) =>
    listAuditEntries(api, { ...queryOf(projectId, wanted), ...bounds }, { signal }).page(),
  )
  const verify = useAction({
    run: async () => verifyAuditLog(api, filters.all ? {} : { project_id: projectId }),
  })
  const exported = useAction({
    run: async () => {
      const entries = await exportAuditEntries(api, { ...queryOf(projectId, filters), project_id: projectId })
      saveAs([await entries.bytes()], texts.file)
    },
  })
  const columns: Column<AuditEntry>[] = [
    {
      title: texts.action,
      isWide: true,
      cell: ({ id, action, resource_public_id, resource_srn }) => (
        <>
          <RecordLink to={`/p/${projectId}/audit/${id}`}>{visible(action)}</RecordLink>
          <Text size="sm" c="dimmed" className="mono">
            {visible(resource_public_id ?? resource_srn ?? '')}
          </Text>
        </>
      ),
    },
    {
      title: texts.who,
      cell: ({ principal_type, principal_id }) =>
        principal_type && principal_id ? (
          <EntityLink kind={principal_type} id={principal_id} projectId={projectId} name={nameOf(principal_id)} />
        ) : (
          texts.platform
        ),
    },
    { title: strings.status, cell: ({ status }) => <StatusBadge status={status} /> },
    { title: texts.at, cell: ({ created_at }) => <When at={created_at} /> },
  ]
  const buttons = (
    <>
      <Button
        variant="default"
        leftSection={<IconShieldCheck size={16} />}
        loading={verify.isPending}
        onClick={() => verify.mutate()}
      >
        {texts.verify}
      </Button>
      {isAllowed(exportAuditEntries) && (
        <Button
          variant="default"
          leftSection={<IconDownload size={16} />}
          loading={exported.isPending}
          onClick={() => exported.mutate()}
        >
          {strings.usage.export}
        </Button>
      )}
    </>
  )
  const date = (name: 'from' | 'to') => (
    <TextInput
      type="date"
      aria-label={texts.dates[name]}
      title={texts.dates[name]}
      value={filters[name] ?? ''}
      onChange={event => setFilters({ [name]: event.currentTarget.value })}
      w={{ base: '100%', xs: 150 }}
    />
  )
  return (
    <Page title={strings.nav.audit} intro={texts.intro} actions={buttons}>
      {(verify.error ?? exported.error) && <FailureAlert error={verify.error ?? exported.error} />}
      {verify.data && (
        <Alert
          role="status"
          color={verify.data.valid ? 'teal' : 'red'}
          icon={verify.data.valid ? <IconShieldCheck /> : <IconShieldX />}
          title={verify.data.valid ? texts.valid : texts.invalid}
        >
          <Text size="sm" component="div">
            {verify.data.valid && texts.checked(verify.data.checked)}
            {!verify.data.valid && verify.data.first_broken_id && (
              <>
                {texts.broken}{' '}
                <Anchor
                  component={Link}
                  to={`/p/${projectId}/audit/${verify.data.first_broken_id}`}
                  underline="always"
                  className="mono"
                >
                  {verify.data.first_broken_id}
                </Anchor>
              </>
            )}
            {!verify.data.valid && !verify.data.first_broken_id && texts.cut}
          </Text>
        </Alert>
      )}
      <ListView
        label={strings.nav.audit}
        list={list}
        operation={listAuditEntries}
        columns={columns}
        choices={['all']}
        fields={
          <>
            <Select
              aria-label={texts.action}
              placeholder={texts.anyAction}
              data={actions.map(({ action }) => action)}
              value={filters.action ?? null}
              onChange={action => setFilters({ action: action ?? undefined })}
              searchable
              clearable
              clearButtonProps={{ 'aria-label': strings.form.clear(texts.action) }}
              limit={50}
              nothingFoundMessage={strings.nothingFound}
              w={{ base: '100%', xs: 260 }}
            />
            <ChoiceField name="outcome" label={texts.outcome} choices={OUTCOMES} />
            <SearchField name="principal" label={texts.principalFilter} />
            <SearchField name="resource" label={texts.resourceFilter} />
            {date('from')}
            {date('to')}
            {isAllowed(getSystemStatus) && (
              <Switch
                label={texts.everything}
                checked={Boolean(filters.all)}
                onChange={event => setFilters({ all: event.currentTarget.checked ? '1' : undefined })}
              />
            )}
          </>
        }
        view="audit"
        empty={
          <Notice icon={<IconHistory />} title={texts.empty}>
            {texts.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}

/** The HTTP status of an entry, with its meaning. */
export function StatusBadge({ status }: { status: number }) {
  return (
    <Badge variant="dot" color={status < 400 ? 'teal' : status < 500 ? 'orange' : 'red'}>
      {status}
    </Badge>
  )
}
