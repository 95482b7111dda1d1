import { Group } from '@mantine/core'
import { getAuditEntry } from '@muster/client/operations'
import { useUserNames } from '#access.ts'
import { useIds } from '#address.ts'
import { EntityLink } from '#components/entity-link.tsx'
import { Page } from '#components/page.tsx'
import { Facts, Section } from '#components/record.tsx'
import { RecordPage } from '#components/record-page.tsx'
import { visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { StatusBadge } from './audit.tsx'

const texts = strings.audit

/** An entry of the audit log with its change. */
export function AuditEntryView() {
  const projectId = useProjectId()
  const { entryId } = useIds()
  const { nameOf } = useUserNames(projectId)
  return (
    <RecordPage queryKey={['audit', 'entry', entryId]} get={getAuditEntry} ids={{ entry_id: entryId }}>
      {({ id, action, principal_type, principal_id, resource_srn, resource_public_id, ...rest }) => {
        const type = resource_srn?.split(':')[2]
        return (
          <Page title={action} intro={<span className="mono">{id}</span>}>
            <Section title={texts.entry}>
              <Facts
                facts={[
                  [
                    texts.who,
                    principal_type && principal_id ? (
                      <EntityLink
                        key="who"
                        kind={principal_type}
                        id={principal_id}
                        projectId={projectId}
                        name={nameOf(principal_id)}
                      />
                    ) : (
                      texts.platform
                    ),
                  ],
                  [
                    strings.status,
                    <Group key="status">
                      <StatusBadge status={rest.status} />
                    </Group>,
                  ],
                  [texts.at, <When at={rest.created_at} key="at" />],
                  [
                    texts.resource,
                    resource_public_id && type && (
                      <EntityLink key="resource" kind={type} id={resource_public_id} projectId={projectId} />
                    ),
                  ],
                  [texts.srn, resource_srn && <span className="mono">{visible(resource_srn)}</span>],
                  [texts.address, rest.ip && <span className="mono">{visible(rest.ip)}</span>],
                  [texts.client, rest.user_agent && visible(rest.user_agent)],
                  [texts.request, rest.request_id && <span className="mono">{visible(rest.request_id)}</span>],
                ]}
              />
            </Section>
            {rest.detail && (
              <Section title={texts.change}>
                <Value value={rest.detail} label={texts.change} />
              </Section>
            )}
          </Page>
        )
      }}
    </RecordPage>
  )
}
