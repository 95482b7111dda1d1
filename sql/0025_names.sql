-- Usernames are compared in NFKC. A name whose normal form another user has is unchanged: an admin renames it.
update users u set username = normalize(u.username, nfkc), updated_at = now()
where u.username is not nfkc normalized
  and not exists (select from users o where o.id <> u.id and lower(normalize(o.username, nfkc)) = lower(normalize(u.username, nfkc)));
